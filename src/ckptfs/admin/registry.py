"""Which mounts this user's daemons serve: one JSON file per mount in a directory that only the user may enter.

=========  ==================================  ========================
file       written                             removed
=========  ==================================  ========================
ID.json    when the mount is usable            after a clean end; after an unclean one when the mount is gone
ID.sock    when the control socket listens     when it stops listening; replaced by the next daemon
ID.lock    before anything is mounted; the     never; the kernel drops the lock with the daemon
           daemon holds a lock on it for life
=========  ==================================  ========================

An entry whose process is gone, or whose process number now belongs to another one (start times differ), is *stale*:
that daemon ended without a clean unmount.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ckptfs.errors import CkptfsError

if TYPE_CHECKING:
    from ckptfs.env import Env

RUNTIME_DIR_VARIABLE: Final = "CKPTFS_RUNTIME_DIR"


@dataclass(frozen=True, slots=True)
class MountEntry:
    """One daemon and its mount.

    Attributes:
        mountpoint: absolute, symlinks resolved.
        pid: of the daemon.
        pid_start: when the kernel started that process, in its ticks since boot: pids are reused, the pair is not.
        store: canonical URL.
        cache_dir: absolute.
        log: path of the log file; empty in the foreground.
        socket: path of the control socket.
    """

    mountpoint: str
    pid: int
    pid_start: int
    store: str
    cache_dir: str
    log: str
    socket: str

    @property
    def is_alive(self) -> bool:
        """Whether exactly this daemon still runs."""
        return process_start(self.pid) == self.pid_start


def runtime_dir() -> Path:
    """Where entries and sockets are; see :func:`prepare`."""
    override = os.environ.get(RUNTIME_DIR_VARIABLE)
    if override:
        return Path(os.path.abspath(override))
    if os.geteuid() == 0:
        return Path("/run/ckptfs")
    session = os.environ.get("XDG_RUNTIME_DIR")
    return Path(session, "ckptfs") if session else Path(os.path.expanduser("~/.cache/ckptfs/run"))


def prepare() -> Path:
    """The runtime directory, made if it is not there.

    Raises:
        CkptfsError: it cannot be made, or others may enter it.
    """
    directory = runtime_dir()
    remedy = f"Set {RUNTIME_DIR_VARIABLE} to a directory of your own."
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = directory.lstat()
    except OSError as error:
        raise CkptfsError(f"cannot make the runtime directory: {directory}: {error.strerror}", hint=remedy) from None
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid() or stat.S_IMODE(info.st_mode) & 0o077:
        raise CkptfsError(
            f"the runtime directory is not private: {directory} (owner {info.st_uid}, mode {info.st_mode & 0o7777:o})",
            hint=f"Make it yours with mode 700. Or: {remedy}",
        )
    return directory


def socket_path(mountpoint: Path) -> Path:
    """The control socket of the mount there."""
    return runtime_dir() / f"{_id(mountpoint)}.sock"


def lock_path(mountpoint: Path) -> Path:
    """The file whose lock says that a daemon serves this mountpoint, or is about to."""
    return runtime_dir() / f"{_id(mountpoint)}.lock"


def register(entry: MountEntry, env: Env) -> None:
    """Make the entry visible, whole or not at all."""
    target = runtime_dir() / f"{_id(Path(entry.mountpoint))}.json"
    temporary = target.with_suffix(f".{env.token()}.tmp")
    temporary.write_text(json.dumps(asdict(entry)), encoding="ascii")
    temporary.replace(target)


def unregister(mountpoint: Path) -> None:
    """Remove the entry; returns too when there is none."""
    (runtime_dir() / f"{_id(mountpoint)}.json").unlink(missing_ok=True)


def find(mountpoint: Path) -> MountEntry | None:
    """The entry of exactly this mountpoint, stale or not."""
    return _read(runtime_dir() / f"{_id(mountpoint)}.json")


def entries() -> list[MountEntry]:
    """Every entry, stale ones included, by mountpoint."""
    try:
        names = os.listdir(runtime_dir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise CkptfsError(f"cannot read the runtime directory: {runtime_dir()}: {error.strerror}") from None
    found = [_read(runtime_dir() / name) for name in names if name.endswith(".json")]
    return sorted((entry for entry in found if entry is not None), key=lambda entry: entry.mountpoint)


def process_start(pid: int) -> int | None:
    """When the kernel started the process, in its ticks since boot; ``None`` if it does not run (any more)."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in {"Z", "X"} else int(fields[19])


def wait_for_end(entry: MountEntry, timeout_s: float) -> bool:
    """Whether the daemon has ended, after at most ``timeout_s``."""
    import select

    try:
        descriptor = os.pidfd_open(entry.pid)
    except ProcessLookupError:
        return True
    try:
        if not entry.is_alive:
            return True
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(max(0.0, timeout_s) * 1000))
    finally:
        os.close(descriptor)


def _id(mountpoint: Path) -> str:
    return hashlib.sha256(os.fsencode(mountpoint)).hexdigest()[:16]


def _read(path: Path) -> MountEntry | None:
    with contextlib.suppress(FileNotFoundError):
        try:
            return MountEntry(**json.loads(path.read_bytes()))
        except (ValueError, TypeError) as error:
            raise CkptfsError(
                f"cannot read the entry of a mount: {path}: {error}",
                hint="It was written by another version; remove the file once its mount is gone.",
            ) from None
    return None
