"""Timestamps: nanoseconds kept, and each moved by what POSIX says and by nothing else."""

from __future__ import annotations

import errno
import os
import time
from typing import TYPE_CHECKING

import pytest
from fs_support import UTIME_NOW, UTIME_OMIT, after_clock_tick, as_user, errno_of, utimensat

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_PAST_NS = 1_000_000_000_123_456_789


@pytest.mark.parametrize(
    "value_ns", [0, 1, 999_999_999, _PAST_NS, -1, -1_500_000_000, 2**31 * 10**9 + 1, 2**32 * 10**9 + 999_999_999]
)
@pytest.mark.parametrize("kind", ["file", "directory", "symlink"])
def test_nanoseconds_are_kept(here: Path, kind: str, value_ns: int) -> None:
    """utimensat(2): to the nanosecond, before 1970 and after 2038 too."""
    path = here / "x"
    if kind == "file":
        path.write_bytes(b"x")
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to("nowhere")
    os.utime(path, ns=(value_ns, value_ns + 5), follow_symlinks=False)
    status = os.lstat(path)
    assert (status.st_atime_ns, status.st_mtime_ns) == (value_ns, value_ns + 5)
    assert abs(status.st_ctime_ns - time.time_ns()) < 60 * 10**9


def test_omit_and_now(here: Path) -> None:
    """UTIME_OMIT leaves a time alone, UTIME_NOW stamps it."""
    path = here / "f"
    path.write_bytes(b"")
    os.utime(path, ns=(_PAST_NS, _PAST_NS))
    utimensat(path, (0, UTIME_OMIT), (5, 7))
    assert (path.stat().st_atime_ns, path.stat().st_mtime_ns) == (_PAST_NS, 5_000_000_007)
    utimensat(path, (6, 8), (0, UTIME_OMIT))
    assert (path.stat().st_atime_ns, path.stat().st_mtime_ns) == (6_000_000_008, 5_000_000_007)
    utimensat(path, (0, UTIME_OMIT), (0, UTIME_NOW))
    assert path.stat().st_atime_ns == 6_000_000_008
    assert abs(path.stat().st_mtime_ns - time.time_ns()) < 60 * 10**9


def test_a_set_time_survives_the_write_back_of_earlier_writes(here: Path) -> None:
    """Late write-back of dirty pages must not stamp a time that was set after the write (cp -p, tar, rsync)."""
    path = here / "f"
    with path.open("wb", buffering=0) as file:
        file.write(b"x" * 300_000)
        os.utime(file.fileno(), ns=(_PAST_NS, _PAST_NS))
    assert path.stat().st_mtime_ns == _PAST_NS
    with path.open("r+b", buffering=0) as file:
        os.fsync(file.fileno())
    assert path.stat().st_mtime_ns == _PAST_NS
    assert path.read_bytes() == b"x" * 300_000


_FILE = {
    "write": (lambda d: (d / "f").write_bytes(b"2"), "mtime ctime"),
    "truncate": (lambda d: os.truncate(d / "f", 0), "mtime ctime"),
    "append": (lambda d: _append(d / "f"), "mtime ctime"),
    "chmod": (lambda d: os.chmod(d / "f", 0o600), "ctime"),
    "chown": (lambda d: os.chown(d / "f", 5, 6), "ctime"),
    "setxattr": (lambda d: os.setxattr(d / "f", "user.a", b"1"), "ctime"),
    "link": (lambda d: os.link(d / "f", d / "l"), "ctime"),
    "unlink": (lambda d: os.unlink(d / "twin"), "ctime"),
    "rename": (lambda d: os.rename(d / "f", d / "g") or os.rename(d / "g", d / "f"), "ctime?"),
    "stat": (lambda d: os.stat(d / "f"), ""),
    "open": (lambda d: os.close(os.open(d / "f", os.O_RDWR)), ""),
    "failed chmod": (lambda d: errno_of(lambda: os.chmod(d / "none", 0)), ""),
}


def _append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


@pytest.mark.parametrize("act", _FILE)
def test_times_of_a_file(here: Path, act: str) -> None:
    """stat(3type): mtime moves with the bytes, ctime with bytes and attributes, neither with anything else."""
    do, moved = _FILE[act]
    (here / "f").write_bytes(b"1")
    os.link(here / "f", here / "twin")
    before = (here / "f").stat()
    after_clock_tick()
    do(here)
    after = (here / "f").stat()
    assert (after.st_mtime_ns > before.st_mtime_ns) == ("mtime" in moved)
    if moved != "ctime?":  # rename(2) may stamp the inode or not
        assert (after.st_ctime_ns > before.st_ctime_ns) == ("ctime" in moved)


_DIRECTORY: dict[str, tuple[Callable[[Path], object], bool]] = {
    "create": (lambda d: (d / "new").write_bytes(b""), True),
    "mkdir": (lambda d: (d / "new").mkdir(), True),
    "symlink": (lambda d: (d / "new").symlink_to("x"), True),
    "link": (lambda d: os.link(d / "f", d / "new"), True),
    "mknod": (lambda d: os.mkfifo(d / "new"), True),
    "unlink": (lambda d: (d / "f").unlink(), True),
    "rmdir": (lambda d: (d / "sub").rmdir(), True),
    "rename": (lambda d: os.rename(d / "f", d / "new"), True),
    "rename away": (lambda d: os.rename(d / "f", d.parent / "moved"), True),
    "rename in": (lambda d: os.rename(d.parent / "outside", d / "new"), True),
    "failed mkdir": (lambda d: errno_of((d / "f").mkdir), False),
    "write": (lambda d: (d / "f").write_bytes(b"changed"), False),
    "chmod of an entry": (lambda d: (d / "f").chmod(0o600), False),
    "list": (os.listdir, False),
}


@pytest.mark.parametrize("act", _DIRECTORY)
def test_times_of_a_directory(here: Path, act: str) -> None:
    """stat(3type): mtime and ctime of a directory move with its entries, and with nothing else."""
    do, moved = _DIRECTORY[act]
    directory = here / "d"
    directory.mkdir()
    (directory / "f").write_bytes(b"1")
    (directory / "sub").mkdir()
    (here / "outside").write_bytes(b"1")
    before = directory.stat()
    after_clock_tick()
    do(directory)
    after = directory.stat()
    assert (after.st_mtime_ns > before.st_mtime_ns, after.st_ctime_ns > before.st_ctime_ns) == (moved, moved)


def test_who_may_set_times(here: Path) -> None:
    """utimensat(2): a given time is for the owner (EPERM), now is for who may write (EACCES)."""
    path = here / "f"
    path.write_bytes(b"")
    path.chmod(0o666)

    def by_another() -> tuple[int, int]:
        return errno_of(lambda: os.utime("f", ns=(1, 1))), errno_of(lambda: os.utime("f"))

    assert as_user(by_another, cwd=here, uid=1000) == (errno.EPERM, 0)
    path.chmod(0o644)
    assert as_user(by_another, cwd=here, uid=1000) == (errno.EPERM, errno.EACCES)
    os.chown(path, 1000, 1000)
    assert as_user(by_another, cwd=here, uid=1000) == (0, 0)
