"""What the tests of the mounted filesystem share: raw system calls, other users, other processes, and waiting.

Imported by name: the ``conftest.py`` beside each of these suites puts this directory on the path.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import pickle
import random
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

T = TypeVar("T")

RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2
RENAME_WHITEOUT = 4
AT_FDCWD = -100
AT_SYMLINK_NOFOLLOW = 0x100
UTIME_NOW = (1 << 30) - 1
UTIME_OMIT = (1 << 30) - 2

KIB = 1024
MIB = 1024 * KIB
SIZES = (0, 1, 4 * KIB - 1, 4 * KIB, 4 * KIB + 1, MIB - 1, MIB, MIB + 1, 4 * MIB - 1, 4 * MIB, 4 * MIB + 1, 9 * MIB + 7)
"""Nothing, one byte, and one byte around every size that is likely to be a page, a block or a part somewhere."""

NAMES = (
    b"[brackets]",
    b"100%25 sure?",
    b"#hash&amp;+plus",
    b" leading and trailing ",
    "caf\u00e9-nfc".encode(),
    "cafe\u0301-nfd".encode(),
    b"new\nline\ttab\r",
    b"not-utf8-\xff\xfe\x80",
    b"back\\slash\"quote'",
    b"*star:colon|pipe<>",
    b"...",
    b"~tilde$dollar;semi",
    b"\x01\x7f control",
    "\U0001f9ea".encode() * 20,
    b"n" * 255,
    "\u00e9".encode() * 127,
    b"\xf0" * 60,
)
"""Names any filesystem takes and some object store, URL or shell does not; each fits into a key and into a name."""

_libc = ctypes.CDLL(None, use_errno=True)


class _Timespec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


def _raise_errno(path: bytes) -> NoReturn:
    number = ctypes.get_errno()
    raise OSError(number, os.strerror(number), path)


def renameat2(source: os.PathLike[str] | bytes | str, target: os.PathLike[str] | bytes | str, flags: int) -> None:
    """``renameat2(2)`` with ``RENAME_*`` flags; OSError as the kernel says."""
    if _libc.renameat2(AT_FDCWD, os.fsencode(source), AT_FDCWD, os.fsencode(target), flags) != 0:
        _raise_errno(os.fsencode(source))


def utimensat(path: os.PathLike[str] | bytes | str, atime: tuple[int, int], mtime: tuple[int, int]) -> None:
    """``utimensat(2)`` with (seconds, nanoseconds), for ``UTIME_NOW`` and ``UTIME_OMIT``, that ``os.utime`` has not."""
    times = (_Timespec * 2)(_Timespec(*atime), _Timespec(*mtime))
    if _libc.utimensat(AT_FDCWD, os.fsencode(path), times, 0) != 0:
        _raise_errno(os.fsencode(path))


def set_fs_ids(uid: int, gid: int) -> None:
    """Make the calling thread act on files as ``uid`` and ``gid`` (``setfsuid(2)``.

    Root's file capabilities go too).
    """
    _libc.setfsgid(gid)
    _libc.setfsuid(uid)


def key_of(path: bytes) -> bytes:
    """The object's key of a path: itself where it is UTF-8, ``U+10FFNN`` for every other byte (decision 0005)."""
    return "".join(
        chr(0x10FF00 + ord(char) - 0xDC00) if 0xDC80 <= ord(char) <= 0xDCFF else char
        for char in path.decode("utf-8", "surrogateescape")
    ).encode()


def payload(size: int, seed: int = 0) -> bytes:
    """``size`` bytes without pattern, always the same for a seed."""
    return random.Random(seed * 1_000_003 + size).randbytes(size)


def sha256_of(path: Path | bytes) -> str:
    """SHA-256 of a file's bytes, hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_durably(path: Path, data: bytes) -> None:
    """Write and fsync."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def fsync_directory(path: Path) -> None:
    """Make every operation on names before durable (DESIGN §2: fsync of a directory)."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def poll(condition: Callable[[], T], what: str, *, deadline_s: float = 30.0) -> T:
    """Ask ``condition`` until its answer is true and return it.

    Raises:
        AssertionError: it was not within ``deadline_s``; says ``what`` and the last answer.
    """
    end_s = time.monotonic() + deadline_s
    while True:
        answer = condition()
        if answer:
            return answer
        assert time.monotonic() < end_s, f"not within {deadline_s} s: {what} (last answer: {answer!r})"
        time.sleep(0.02)


def after_clock_tick() -> None:
    """Return when the coarse clock that filesystems stamp times from has moved on (it ticks every 1 to 10 ms)."""
    begun_ns = time.clock_gettime_ns(time.CLOCK_REALTIME)
    poll(lambda: time.clock_gettime_ns(time.CLOCK_REALTIME) > begun_ns + 20_000_000, "the clock moves")


def _run_and_report(fn: Callable[[], object], write_fd: int) -> None:
    try:
        report = pickle.dumps((True, fn()))
    except BaseException as error:  # noqa: BLE001 - whatever it is, the parent raises it
        error.add_note(traceback.format_exc())
        try:
            report = pickle.dumps((False, error))
        except (TypeError, AttributeError, pickle.PicklingError):
            report = pickle.dumps((False, RuntimeError(traceback.format_exc())))
    with os.fdopen(write_fd, "wb") as pipe:
        pipe.write(report)


class Child:
    """A forked process that runs ``fn`` in ``cwd``, as another user; :meth:`result` gives what came of it.

    The directory is entered as root before the change of user, so that ``fn`` can use relative paths below
    directories which that user may not pass.
    """

    def __init__(
        self, fn: Callable[[], T], *, cwd: Path, uid: int = 0, gid: int | None = None, groups: Iterable[int] = ()
    ) -> None:
        read_fd, write_fd = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(read_fd)
                os.chdir(cwd)
                group = uid if gid is None else gid
                if uid != 0:
                    os.setgroups(list(groups))
                    os.setresgid(group, group, group)
                    os.setresuid(uid, uid, uid)
                _run_and_report(fn, write_fd)
            finally:
                os._exit(0)
        os.close(write_fd)
        self._read_fd = read_fd

    def result(self) -> object:
        """Wait for its end; give what ``fn`` returned or raise what it raised."""
        with os.fdopen(self._read_fd, "rb") as pipe:
            report = pipe.read()
        _, status = os.waitpid(self.pid, 0)
        assert report, f"child died without a report: {os.waitstatus_to_exitcode(status)}"
        succeeded, value = pickle.loads(report)
        if succeeded:
            return value
        raise value


def as_user(fn: Callable[[], T], *, cwd: Path, uid: int, gid: int | None = None, groups: Iterable[int] = ()) -> object:
    """Run ``fn`` in a process of user ``uid`` (and ``gid``, the same unless said); see :class:`Child`."""
    return Child(fn, cwd=cwd, uid=uid, gid=gid, groups=groups).result()


def errno_of(fn: Callable[[], object]) -> int:
    """The errno that ``fn`` fails with; 0 when it does not."""
    try:
        fn()
    except OSError as error:
        assert error.errno is not None
        return error.errno
    return 0


def run(*command: str | os.PathLike[str], cwd: Path | None = None, timeout_s: float = 120.0) -> str:
    """Run a program, give its standard output; an exit code but 0 fails the test with all that it said."""
    done = subprocess.run(
        [os.fspath(part) for part in command], cwd=cwd, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    assert done.returncode == 0, f"{command} exited {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def start_python(code: str, *arguments: str | os.PathLike[str]) -> subprocess.Popen[str]:
    """Start a Python program with pipes for its three streams."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *(os.fspath(argument) for argument in arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def files_of(root: Path) -> dict[bytes, bytes]:
    """Every regular file below ``root``: relative path to its bytes."""
    return dict(_walk_files(os.fsencode(root), b""))


def _walk_files(root: bytes, below: bytes) -> Iterator[tuple[bytes, bytes]]:
    for entry in os.scandir(os.path.join(root, below) if below else root):
        relative = os.path.join(below, entry.name) if below else entry.name
        if entry.is_dir(follow_symlinks=False):
            yield from _walk_files(root, relative)
        elif entry.is_file(follow_symlinks=False):
            yield relative, Path(os.fsdecode(entry.path)).read_bytes()


def bucket_files(bucket: Path) -> dict[bytes, bytes]:
    """The user's objects of a ``file://`` bucket: key to bytes. What lies under ``.ckptfs/`` is ckptfs's own."""
    return {key: data for key, data in files_of(bucket).items() if not key.startswith(b".ckptfs/")}


def put(bucket: Path, key: str, data: bytes) -> None:
    """Put an object as another tool does: under a temporary name, then renamed."""
    path = bucket / key
    path.parent.mkdir(parents=True, exist_ok=True)
    temp = bucket.parent / "putting"
    temp.write_bytes(data)
    temp.rename(path)
