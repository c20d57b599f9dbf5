"""The kernel's mount table: what is mounted where, who uses it, and how to take it away."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ckptfs import limits
from ckptfs.errors import CkptfsError, DeadlineError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FILESYSTEM_TYPE: Final = "fuse.ckptfs"
"""Type of our mounts in the table: the driver mounts with ``subtype=ckptfs``."""

_OCTAL = re.compile(rb"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class MountedHere:
    """One line of the mount table."""

    mountpoint: str
    filesystem: str
    source: str


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that keeps a mount busy, with one path of the mount that it uses."""

    pid: int
    name: str
    path: str


def mount_table() -> list[MountedHere]:
    """Every mount that this process sees, later ones on top of earlier ones."""
    found = []
    with open("/proc/self/mountinfo", "rb") as table:
        for line in table:
            left, _, right = line.rstrip(b"\n").partition(b" - ")
            filesystem, source = right.split(b" ")[:2]
            found.append(MountedHere(_unescape(left.split(b" ")[4]), os.fsdecode(filesystem), _unescape(source)))
    return found


def mounted_at(mountpoint: Path) -> MountedHere | None:
    """The topmost mount on exactly this path, without touching it: a dead or hanging mount is found too."""
    wanted = str(mountpoint)
    return next((entry for entry in reversed(mount_table()) if entry.mountpoint == wanted), None)


def filesystem_of(path: Path) -> MountedHere:
    """The mount that ``path`` (absolute, symlinks resolved) lies in."""
    text = str(path)
    best: MountedHere | None = None
    for entry in mount_table():
        inside = entry.mountpoint in {"/", text} or text.startswith(entry.mountpoint + "/")
        if inside and (best is None or len(entry.mountpoint) >= len(best.mountpoint)):
            best = entry
    assert best is not None, "every path lies in some mount"
    return best


def is_dead(mountpoint: Path) -> bool:
    """Whether a FUSE mount there has lost its daemon. Only to be asked of a mount whose daemon does not hang."""
    try:
        os.stat(mountpoint)
    except OSError as error:
        return error.errno in {errno.ENOTCONN, errno.ECONNABORTED}
    return False


def unmount(mountpoint: Path, *, lazy: bool = False, timeout_s: float = limits.DETACH_S) -> bool:
    """Take the topmost mount there away. The kernel writes dirty pages back through the daemon first.

    Args:
        mountpoint: of the mount.
        lazy: take it out of the tree even if it is in use; users of open files keep them as long as the daemon lives.
        timeout_s: how long it may take.

    Returns:
        ``False`` if it is in use and ``lazy`` is not set; it is still mounted then.

    Raises:
        DeadlineError: not within ``timeout_s``; the kernel goes on with it.
        CkptfsError: it cannot be unmounted for another reason.
    """
    if os.geteuid() == 0:
        command = ["umount", "-i", *(["-l"] if lazy else []), "--", str(mountpoint)]
    else:
        command = ["fusermount3", "-u", *(["-z"] if lazy else []), "--", str(mountpoint)]
    if shutil.which(command[0]) is None:
        raise CkptfsError(f"{command[0]} is not installed", hint="Install it (Debian: mount, fuse3).")
    try:
        result = subprocess.run(  # noqa: S603 - a fixed program, its argument behind "--"
            command,
            env={**os.environ, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise DeadlineError(f"unmounting takes longer than {timeout_s:g} s: {mountpoint}") from None
    if result.returncode == 0:
        return True
    if not lazy and "busy" in result.stderr:
        return False
    if mounted_at(mountpoint) is None:
        return True
    raise CkptfsError(f"cannot unmount {mountpoint}: {result.stderr.strip() or f'exit code {result.returncode}'}")


def holders(mountpoint: Path, *, count_max: int = 5) -> list[Holder]:
    """Processes that keep the mount busy, as far as this user may see them; at most ``count_max``."""
    found = []
    prefix = str(mountpoint)
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        # A process may end, or belong to somebody else, at any point of this.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            used = next((path for path in _used_paths(entry) if path == prefix or path.startswith(prefix + "/")), None)
            if used is not None:
                with open(f"/proc/{entry}/comm", encoding="utf-8", errors="replace") as comm:
                    found.append(Holder(int(entry), comm.read().strip(), used))
        if len(found) == count_max:
            break
    return found


def _used_paths(pid: str) -> Iterator[str]:
    """Working directory, root, open files and mapped files of a process."""
    for name in ("cwd", "root"):
        yield os.readlink(f"/proc/{pid}/{name}")
    for descriptor in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            yield os.readlink(f"/proc/{pid}/fd/{descriptor}")
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            fields = line.rstrip("\n").split(" ", 5)
            if len(fields) == 6:
                yield fields[5].strip()


def _unescape(field: bytes) -> str:
    """A path of the table as text: blanks, tabs, newlines and backslashes stand there in octal."""
    return os.fsdecode(_OCTAL.sub(lambda match: bytes([int(match[1], 8)]), field))
