"""Hard links, symbolic links, and files that live on without a name."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

import pytest
from fs_support import MIB, errno_of, payload

if TYPE_CHECKING:
    from pathlib import Path


def test_hard_links_are_one_file(here: Path) -> None:
    """link(2): the names are equal in everything; what one changes the others show."""
    first, second = here / "first", here / "d" / "second"
    second.parent.mkdir()
    first.write_bytes(payload(5000))
    os.link(first, second)
    assert first.stat().st_ino == second.stat().st_ino
    assert first.stat().st_nlink == second.stat().st_nlink == 2
    with second.open("r+b") as file:
        file.seek(4000)
        file.write(b"changed")
    assert first.read_bytes() == payload(5000)[:4000] + b"changed" + payload(5000)[4007:]
    first.chmod(0o600)
    os.setxattr(first, "user.note", b"1")
    assert stat.S_IMODE(second.stat().st_mode) == 0o600
    assert os.getxattr(second, "user.note") == b"1"
    first.unlink()
    assert second.stat().st_nlink == 1
    assert second.read_bytes()[4000:4007] == b"changed"


def test_link_refusals(here: Path) -> None:
    """link(2): EEXIST over a name, EPERM for a directory, ENOENT for nothing; and nothing changes."""
    (here / "f").write_bytes(b"f")
    (here / "g").write_bytes(b"g")
    (here / "d").mkdir()
    assert errno_of(lambda: os.link(here / "f", here / "g")) == errno.EEXIST
    assert errno_of(lambda: os.link(here / "f", here / "f")) == errno.EEXIST
    assert errno_of(lambda: os.link(here / "d", here / "e")) == errno.EPERM
    assert errno_of(lambda: os.link(here / "none", here / "e")) == errno.ENOENT
    assert sorted(os.listdir(here)) == ["d", "f", "g"]
    assert (here / "f").stat().st_nlink == 1
    assert (here / "g").read_bytes() == b"g"


def test_many_links(here: Path) -> None:
    """NS-1: link counts are true, up and down."""
    (here / "0").write_bytes(b"one content")
    for number in range(1, 300):
        os.link(here / "0", here / str(number))
    assert (here / "299").stat().st_nlink == 300
    for number in range(299):
        (here / str(number)).unlink()
        assert (here / "299").stat().st_nlink == 299 - number
    assert (here / "299").read_bytes() == b"one content"


def test_directory_link_counts(here: Path) -> None:
    """A directory has two links and one for each directory in it, whatever comes and goes."""
    assert here.stat().st_nlink == 2
    (here / "a" / "b").mkdir(parents=True)
    (here / "f").write_bytes(b"")
    assert here.stat().st_nlink == 3
    (here / "a" / "b").rename(here / "b")
    assert (here.stat().st_nlink, (here / "a").stat().st_nlink) == (4, 2)
    (here / "b").rename(here / "a")
    assert here.stat().st_nlink == 3
    (here / "a").rmdir()
    assert here.stat().st_nlink == 2


@pytest.mark.parametrize("size", [0, 1, MIB + 1])
def test_an_open_file_outlives_its_name(here: Path, size: int) -> None:
    """unlink(2): the file goes on for who has it open: read, write, truncate, stat with no links."""
    path = here / "f"
    path.write_bytes(payload(size))
    with path.open("r+b", buffering=0) as file:
        path.unlink()
        assert not path.exists()
        assert os.fstat(file.fileno()).st_nlink == 0
        assert file.read() == payload(size)
        file.write(b"more")
        assert os.pread(file.fileno(), size + 10, 0) == payload(size) + b"more"
        file.truncate(2)
        assert os.fstat(file.fileno()).st_size == 2
        path.write_bytes(b"another file of that name")
        assert os.pread(file.fileno(), 10, 0) == (payload(size) + b"more")[:2]
    assert path.read_bytes() == b"another file of that name"


def test_a_file_replaced_by_rename_outlives_its_name(here: Path) -> None:
    """rename(2): who has the replaced file open keeps it."""
    (here / "old").write_bytes(b"old bytes")
    (here / "new").write_bytes(b"new bytes")
    with (here / "old").open("rb", buffering=0) as reader:
        (here / "new").rename(here / "old")
        assert os.fstat(reader.fileno()).st_nlink == 0
        assert reader.read() == b"old bytes"
    assert (here / "old").read_bytes() == b"new bytes"


def test_a_removed_directory_can_still_be_the_working_one(here: Path) -> None:
    """rmdir(2): an open directory without a name is empty and takes no new names."""
    (here / "d").mkdir()
    fd = os.open(here / "d", os.O_RDONLY)
    try:
        (here / "d").rmdir()
        assert os.listdir(fd) == []
        assert errno_of(lambda: os.mkdir("x", dir_fd=fd)) == errno.ENOENT
        assert errno_of(lambda: os.open("x", os.O_CREAT | os.O_WRONLY, dir_fd=fd)) == errno.ENOENT
    finally:
        os.close(fd)


@pytest.mark.parametrize("target", [b"relative/x", b"/absolute", b"..", b"\xff\xfe\n", b"t" * 4095])
def test_symlink_targets_are_kept_byte_for_byte(here: Path, target: bytes) -> None:
    """symlink(2): the target is any text up to PATH_MAX, and its length is the size."""
    link = os.fsencode(here / "link")
    os.symlink(target, link)
    assert os.readlink(link) == target
    status = os.lstat(link)
    assert stat.S_ISLNK(status.st_mode)
    assert status.st_size == len(target)
    assert status.st_nlink == 1


def test_symlinks_are_followed_and_refused_where_they_must_be(here: Path) -> None:
    """path_resolution(7), open(2): relative to their own directory; ELOOP for a circle and for O_NOFOLLOW."""
    (here / "d").mkdir()
    (here / "d" / "f").write_bytes(b"through")
    (here / "last").symlink_to("d/f")
    (here / "d" / "up").symlink_to("../last")
    (here / "x").symlink_to("y")
    (here / "y").symlink_to("x")
    assert (here / "d" / "up").read_bytes() == b"through"
    assert errno_of((here / "x").read_bytes) == errno.ELOOP
    assert errno_of(lambda: os.open(here / "last", os.O_RDONLY | os.O_NOFOLLOW)) == errno.ELOOP
    assert errno_of(lambda: os.open(here / "last", os.O_CREAT | os.O_EXCL | os.O_WRONLY)) == errno.EEXIST
    (here / "dangling").symlink_to("d/new")
    (here / "dangling").write_bytes(b"made through the link")
    assert (here / "d" / "new").read_bytes() == b"made through the link"


def test_special_files(here: Path) -> None:
    """mknod(2): FIFOs and sockets are names like others; a FIFO passes bytes between processes."""
    os.mkfifo(here / "fifo", 0o640)
    os.mknod(here / "socket", stat.S_IFSOCK | 0o600)
    assert stat.S_ISFIFO((here / "fifo").stat().st_mode)
    assert stat.S_ISSOCK((here / "socket").stat().st_mode)
    reader = os.open(here / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(here / "fifo", os.O_WRONLY)
    try:
        os.write(writer, b"through the pipe")
        assert os.read(reader, 100) == b"through the pipe"
    finally:
        os.close(reader)
        os.close(writer)
