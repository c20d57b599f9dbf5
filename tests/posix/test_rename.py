"""rename(2) and renameat2(2): atomic, with all their flags and refusals."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest
from fs_support import (
    MIB,
    RENAME_EXCHANGE,
    RENAME_NOREPLACE,
    Child,
    errno_of,
    files_of,
    payload,
    poll,
    renameat2,
)

if TYPE_CHECKING:
    from pathlib import Path


def test_noreplace_never_replaces(here: Path) -> None:
    """RENAME_NOREPLACE: EEXIST over anything, else a rename."""
    (here / "a").write_bytes(b"a")
    (here / "b").write_bytes(b"b")
    (here / "d").mkdir()
    (here / "link").symlink_to("nowhere")
    for taken in ("b", "d", "link", "a"):
        assert errno_of(lambda taken=taken: renameat2(here / "a", here / taken, RENAME_NOREPLACE)) == errno.EEXIST
    renameat2(here / "a", here / "c", RENAME_NOREPLACE)
    assert (here / "c").read_bytes() == b"a"
    assert (here / "b").read_bytes() == b"b"


@pytest.mark.parametrize("kinds", ["file file", "file directory", "directory file", "symlink file", "full empty"])
def test_exchange_swaps_anything(here: Path, kinds: str) -> None:
    """RENAME_EXCHANGE: both names, whatever they are, at once."""
    inodes = []
    for name, kind in zip(("a", "b"), kinds.split(), strict=True):
        (here / name).mkdir()
        path = here / name / "x"
        if kind == "file":
            path.write_bytes(os.fsencode(name))
        elif kind == "symlink":
            path.symlink_to("t")
        else:
            path.mkdir()
            if kind == "full":
                (path / "inner").write_bytes(b"inner")
        inodes.append(path.lstat().st_ino)
    renameat2(here / "a" / "x", here / "b" / "x", RENAME_EXCHANGE)
    assert [(here / name / "x").lstat().st_ino for name in ("b", "a")] == inodes
    directories = [
        sum((here / name / "x").is_dir() and not (here / name / "x").is_symlink() for _ in "x") for name in "ab"
    ]
    assert [(here / name).stat().st_nlink - 2 for name in "ab"] == directories


def test_exchange_refusals(here: Path) -> None:
    """RENAME_EXCHANGE needs both names; together with NOREPLACE it means nothing."""
    (here / "a" / "b").mkdir(parents=True)
    assert errno_of(lambda: renameat2(here / "a", here / "none", RENAME_EXCHANGE)) == errno.ENOENT
    assert errno_of(lambda: renameat2(here / "a", here / "a" / "b", RENAME_EXCHANGE)) == errno.EINVAL
    both = RENAME_EXCHANGE | RENAME_NOREPLACE
    assert errno_of(lambda: renameat2(here / "a", here / "c", both)) == errno.EINVAL


def test_refusals_leave_everything(here: Path) -> None:
    """rename(2): into its own subtree, over the wrong kind, over a full directory."""
    (here / "d" / "sub").mkdir(parents=True)
    (here / "d" / "sub" / "f").write_bytes(b"f")
    (here / "full" / "x").mkdir(parents=True)
    (here / "file").write_bytes(b"file")
    before = files_of(here)
    assert errno_of(lambda: os.rename(here / "d", here / "d" / "e")) == errno.EINVAL
    assert errno_of(lambda: os.rename(here / "d", here / "d" / "sub" / "deep")) == errno.EINVAL
    assert errno_of(lambda: os.rename(here / "d", here / "full")) in (errno.ENOTEMPTY, errno.EEXIST)
    assert errno_of(lambda: os.rename(here / "d" / "sub", here / "d")) in (errno.ENOTEMPTY, errno.EEXIST)
    assert errno_of(lambda: os.rename(here / "file", here / "d")) == errno.EISDIR
    assert errno_of(lambda: os.rename(here / "d", here / "file")) == errno.ENOTDIR
    assert errno_of(lambda: os.rename(here / "none", here / "file")) == errno.ENOENT
    assert errno_of(lambda: os.rename(here / "file", here / "none" / "x")) == errno.ENOENT
    assert errno_of(lambda: os.rename(here / "file", here / ("n" * 256))) == errno.ENAMETOOLONG
    assert files_of(here) == before


def test_directory_over_an_empty_one(here: Path) -> None:
    """rename(2): the tree comes along, the empty target is gone."""
    (here / "d" / "deep" / "er").mkdir(parents=True)
    (here / "d" / "deep" / "f").write_bytes(b"1")
    (here / "empty").mkdir()
    inode = (here / "d").stat().st_ino
    os.rename(here / "d", here / "empty")
    assert (here / "empty").stat().st_ino == inode
    assert files_of(here) == {b"empty/deep/f": b"1"}
    os.rename(here / "empty", here / "empty")
    assert os.path.realpath(here / "empty" / "deep" / ".." / "..") == os.path.realpath(here)


def test_a_working_directory_moves_along(here: Path) -> None:
    """An open directory is the inode, not the path: ``..`` and new files go where it went."""
    (here / "from" / "d").mkdir(parents=True)
    (here / "to").mkdir()
    fd = os.open(here / "from" / "d", os.O_RDONLY)
    try:
        os.rename(here / "from" / "d", here / "to" / "e")
        os.close(os.open("made", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
        assert (here / "to" / "e" / "made").exists()
        assert os.stat("..", dir_fd=fd).st_ino == (here / "to").stat().st_ino
    finally:
        os.close(fd)


@pytest.mark.parametrize("size", [1, 4097, MIB + 1])
def test_an_open_dirty_file_keeps_its_bytes(here: Path, size: int) -> None:
    """FIELD §1 (safetensors): sized, written, renamed while open and unsynced, written on, closed."""
    (here / "target").write_bytes(b"older")
    with (here / "temp").open("w+b", buffering=0) as file:
        file.truncate(size)
        file.write(payload(size))
        os.rename(here / "temp", here / "target")
        assert (here / "target").read_bytes() == payload(size)
        file.write(b"tail")
    assert (here / "target").read_bytes() == payload(size) + b"tail"
    assert os.listdir(here) == ["target"]


def test_a_name_is_never_absent_or_mixed_while_it_is_replaced(here: Path) -> None:
    """ATM-2: at every instant the name resolves to exactly the old or the new inode, with its whole bytes."""
    contents = {letter.encode() * 100_000 for letter in "ab"}
    target = here / "latest"
    target.write_bytes(b"a" * 100_000)

    def replace() -> int:
        for number in range(150):
            temp = here / f"temp{number % 3}"
            temp.write_bytes((b"a", b"b")[number % 2] * 100_000)
            os.rename(temp, target)
        (here / "done").touch()
        return 150

    writer = Child(replace, cwd=here)
    seen = 0
    while not (here / "done").exists():
        assert target.read_bytes() in contents
        seen += 1
    assert writer.result() == 150
    assert seen > 10


def test_exchange_is_atomic_for_others(here: Path) -> None:
    """RENAME_EXCHANGE: no instant in which one of the names is missing."""
    for name in ("a", "b"):
        (here / name).mkdir()
        (here / name / "id").write_bytes(name.encode())

    def exchange() -> None:
        for _ in range(300):
            renameat2(here / "a", here / "b", RENAME_EXCHANGE)
        (here / "done").touch()

    writer = Child(exchange, cwd=here)
    while not (here / "done").exists():
        assert (here / "a" / "id").read_bytes() in (b"a", b"b")
        os.stat(here / "b")
    writer.result()
    assert (here / "a" / "id").read_bytes() == b"a"


def test_a_renamed_tree_is_found_under_its_new_name_only(here: Path) -> None:
    """The kernel's name cache never answers for names that moved."""
    (here / "one" / "two").mkdir(parents=True)
    (here / "one" / "two" / "f").write_bytes(b"f")
    assert (here / "one" / "two" / "f").exists()
    os.rename(here / "one", here / "three")
    assert not (here / "one" / "two" / "f").exists()
    assert (here / "three" / "two" / "f").read_bytes() == b"f"
    (here / "one").mkdir()
    poll(lambda: os.listdir(here / "one") == [], "the new directory of the old name is empty", deadline_s=1)
