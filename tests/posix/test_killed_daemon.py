"""What a killed daemon leaves (DESIGN §2): everything that was closed or synced, and every change of names, whole."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from fs_support import RENAME_EXCHANGE, SIZES, Child, files_of, fsync_directory, payload, renameat2

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ckptfs.testing.mounts import Mount


def _close(fd: int) -> None:
    os.close(fd)


def _fsync(fd: int) -> None:
    os.fsync(fd)


def _fdatasync(fd: int) -> None:
    os.fdatasync(fd)


@pytest.mark.parametrize("promise", [_close, _fsync, _fdatasync])
def test_written_bytes_survive(mount: Mount, promise: Callable[[int], None]) -> None:
    """``close`` of a written file (``--close=sync``, the default), ``fsync``, ``fdatasync``: kept."""
    expected: dict[bytes, bytes] = {}
    (mount.path / "d").mkdir()
    for number, size in enumerate(SIZES):
        name = f"d/f{number}"
        fd = os.open(mount.path / name, os.O_CREAT | os.O_WRONLY, 0o644)
        expected[name.encode()] = payload(size, number)
        os.write(fd, expected[name.encode()])
        promise(fd)
    mount.kill()
    mount.remount()
    assert files_of(mount.path) == expected


def test_rewritten_and_appended_bytes_survive(mount: Mount) -> None:
    """A second close counts as much as the first: over an old content, in its middle and at its end."""
    data = bytearray(payload(300_000))
    path = mount.path / "f"
    path.write_bytes(data)
    with path.open("r+b") as file:
        file.seek(123_456)
        file.write(b"middle")
    with path.open("ab") as file:
        file.write(b"end")
    data[123_456:123_462] = b"middle"
    mount.kill()
    mount.remount()
    assert path.read_bytes() == data + b"end"


def test_osync_writes_survive(mount: Mount) -> None:
    """O_SYNC and O_DSYNC: each write that returned is kept, although nothing was closed."""
    expected = {}
    for flag in (os.O_SYNC, os.O_DSYNC):
        fd = os.open(mount.path / f"f{flag}", os.O_CREAT | os.O_WRONLY | flag, 0o644)
        for number in range(5):
            os.write(fd, payload(5000, number))
        expected[f"f{flag}".encode()] = b"".join(payload(5000, number) for number in range(5))
    mount.kill()
    mount.remount()
    assert files_of(mount.path) == expected


def test_names_survive(mount: Mount) -> None:
    """``rename``, ``link``, ``unlink``, ``mkdir``, … with their attributes: the new state."""
    root = mount.path
    for name in ("a", "b", "gone", "x"):
        (root / name).write_bytes(name.encode())
    (root / "d" / "sub").mkdir(parents=True)
    (root / "d" / "sub" / "f").write_bytes(b"f")
    os.rename(root / "a", root / "b")
    os.link(root / "b", root / "d" / "twin")
    (root / "gone").unlink()
    os.rename(root / "d", root / "e")
    (root / "y").mkdir()
    renameat2(root / "x", root / "y", RENAME_EXCHANGE)
    (root / "s").symlink_to("nowhere")
    os.chown(root / "b", 12, 34)
    (root / "b").chmod(0o4711)
    os.utime(root / "b", ns=(1, 1_000_000_000_000_000_007))
    os.setxattr(root / "b", "user.note", b"\x00\xff")
    fsync_directory(root)
    mount.kill()
    mount.remount()
    assert sorted(os.listdir(root)) == ["b", "e", "s", "x", "y"]
    assert files_of(root) == {b"b": b"a", b"e/twin": b"a", b"e/sub/f": b"f", b"y": b"x"}
    status = (root / "b").stat()
    assert (status.st_mode & 0o7777, status.st_uid, status.st_gid, status.st_nlink) == (0o4711, 12, 34, 2)
    assert status.st_mtime_ns == 1_000_000_000_000_000_007
    assert os.getxattr(root / "b", "user.note") == b"\x00\xff"
    assert os.readlink(root / "s") == "nowhere"
    assert (root / "x").is_dir()


def test_a_kill_in_the_middle_leaves_each_rename_old_or_new(mount: Mount) -> None:
    """``rename``: old or new, never between; and all but the last one new, since the next close was synced."""
    (mount.path / "ack").mkdir()
    read_fd, write_fd = os.pipe()

    def work() -> None:
        for number in range(2000):  # the daemon is killed long before
            with open("temp", "wb") as temp:
                temp.write(payload(20_000, number))
            os.rename("temp", f"ack/{number}")
            os.write(write_fd, b"+")

    worker = Child(work, cwd=mount.path)
    os.close(write_fd)
    acknowledged = b""
    while len(acknowledged) < 60:
        acknowledged += os.read(read_fd, 1000)
    mount.kill()
    with pytest.raises(OSError, match=r"."):
        worker.result()
    while more := os.read(read_fd, 1000):
        acknowledged += more
    os.close(read_fd)
    mount.remount()
    found = files_of(mount.path / "ack")
    count = len(acknowledged)
    assert count - 1 <= len(found) <= count + 1
    assert found == {str(number).encode(): payload(20_000, number) for number in range(len(found))}
    if len(found) == count - 1:
        assert (mount.path / "temp").read_bytes() == payload(20_000, count - 1)


def test_unlinked_open_files_leave_nothing(mount: Mount) -> None:
    """A file without a name that was open when the daemon died takes no staging space afterwards."""
    fd = os.open(mount.path / "f", os.O_CREAT | os.O_RDWR, 0o644)
    os.write(fd, payload(8 << 20))
    os.fsync(fd)
    (mount.path / "f").unlink()
    fsync_directory(mount.path)
    mount.kill()
    with pytest.raises(OSError, match=r"."):
        os.close(fd)
    mount.remount()
    assert os.listdir(mount.path) == []
    mount.wait()
    mount.umount()
    assert not [path for path in (mount.cache_dir / "contents").rglob("*") if path.is_file()]


def test_inode_numbers_are_never_reused(mount: Mount) -> None:
    """NS: within the life of a cache directory, over removals, a kill and a remount."""
    seen: set[int] = set()
    for round_number in range(3):
        for number in range(30):
            path: Path = mount.path / f"{round_number}-{number}"
            path.write_bytes(b"")
            assert path.stat().st_ino not in seen
            seen.add(path.stat().st_ino)
            path.unlink()
        mount.kill()
        mount.remount()
