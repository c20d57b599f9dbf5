"""Directories while they are read and changed, small and very large."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from fs_support import NAMES, Child, run

if TYPE_CHECKING:
    from pathlib import Path


def test_types_and_inodes_without_stat(here: Path) -> None:
    """readdir(3): d_type and d_ino are those of lstat(2)."""
    (here / "d").mkdir()
    (here / "f").write_bytes(b"")
    (here / "l").symlink_to("f")
    os.mkfifo(here / "p")
    with os.scandir(here) as entries:
        seen = {entry.name: (entry.inode(), entry.is_dir(), entry.is_symlink()) for entry in entries}
    assert seen == {name: ((here / name).lstat().st_ino, name == "d", name == "l") for name in ("d", "f", "l", "p")}


@pytest.mark.parametrize("stride", [1, 2, 7])
def test_removing_while_listing_misses_nothing(here: Path, stride: int) -> None:
    """``rm -rf`` removes entries as it reads them: every other entry is still seen, exactly once."""
    names = {f"entry-{number:04d}" for number in range(1200)}
    for name in names:
        (here / name).touch()
    seen: list[str] = []
    with os.scandir(here) as entries:
        for number, entry in enumerate(entries):
            seen.append(entry.name)
            if number % stride == 0:
                (here / entry.name).unlink()
    assert sorted(seen) == sorted(names)
    assert len(os.listdir(here)) == 1200 - len(range(0, 1200, stride))


def test_entries_that_stay_are_seen_once_while_others_come_and_go(here: Path) -> None:
    """readdir(3): what is there the whole time is given exactly once, whatever happens around it."""
    stable = {f"stable-{number:04d}" for number in range(1000)}
    for name in stable:
        (here / name).touch()

    def churn() -> None:
        for number in range(400):
            with open(f"passing-{number % 97:03d}", "wb"):
                pass
            os.rename(f"passing-{number % 97:03d}", f"moved-{number % 13}")
            if number % 5 == 0:
                os.unlink(f"moved-{number % 13}")
        with open("done", "wb"):
            pass

    child = Child(churn, cwd=here)
    listings = 0
    while not (here / "done").exists() or listings == 0:
        with os.scandir(here) as entries:
            seen = [entry.name for entry in entries]
        assert sorted(name for name in seen if name in stable) == sorted(stable)
        listings += 1
    child.result()


def test_rewinding_sees_what_is_there_now(here: Path) -> None:
    """rewinddir(3): the directory as if opened anew."""
    fd = os.open(here, os.O_RDONLY)
    try:
        assert os.listdir(fd) == []
        (here / "new").touch()
        assert os.listdir(fd) == ["new"]  # listdir rewinds the descriptor that it shares
        (here / "new").unlink()
        assert os.listdir(fd) == []
    finally:
        os.close(fd)


def test_an_emptied_directory_can_be_removed(here: Path) -> None:
    """rmdir(2) right after the last unlink."""
    for round_number in range(20):
        directory = here / "d"
        directory.mkdir()
        for number in range(10):
            (directory / f"{round_number}-{number}").touch()
        for name in os.listdir(directory):
            (directory / name).unlink()
        directory.rmdir()


@pytest.mark.timeout(240)
def test_a_hundred_thousand_entries(here: Path) -> None:
    """DESIGN §1, issue 2: a very large directory is listed whole, each entry once, while it is being changed."""
    count = 100_000
    fd = os.open(here, os.O_RDONLY)
    for number in range(count):
        os.symlink("nowhere", f"e{number}", dir_fd=fd)  # no bytes to sync, so the test is about the directory
    names = []
    with os.scandir(here) as entries:
        for entry in entries:
            names.append(entry.name)
            if len(names) % 1000 == 0:
                os.unlink(entry.name, dir_fd=fd)
                os.symlink("nowhere", f"new{len(names)}", dir_fd=fd)
    os.close(fd)
    old = [name for name in names if name.startswith("e")]
    assert len(old) == len(set(old)) == count
    new = [name for name in names if name.startswith("new")]
    assert len(new) == len(set(new)) <= count // 1000
    assert len(os.listdir(here)) == count


def test_names_of_any_bytes(here: Path) -> None:
    """DESIGN §1: names up to 255 bytes of any bytes but ``/`` and NUL, given back byte for byte."""
    root = os.fsencode(here)
    singles = [bytes([byte]) for byte in range(1, 256) if byte not in b"/."]
    everything = {*NAMES, *singles, b"\xf0" * 255}
    for name in everything:
        fd = os.open(os.path.join(root, name), os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        os.write(fd, name)
        os.close(fd)
    assert sorted(os.listdir(root)) == sorted(everything)
    for name in os.listdir(root):
        with open(os.path.join(root, name), "rb") as file:
            assert file.read() == name


def test_a_listing_begins_with_the_directory_and_its_parent(here: Path) -> None:
    """readdir(3): ``.`` and ``..`` are there, with the inode numbers of what they stand for."""
    (here / "d").mkdir()
    (here / "d" / "f").touch()
    listed = run("ls", "-a", "-i", "-1", "-U", here / "d").split()
    found = dict(zip(listed[1::2], map(int, listed[::2]), strict=True))
    assert found == {name: os.stat(here / "d" / name).st_ino for name in (".", "..", "f")}
