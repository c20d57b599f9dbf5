"""The O_TRUNC shield of DESIGN §2: its readers, the bucket and a crash keep the old content until the new is closed.

This is the one deviation from POSIX: a reader that opened before the truncation keeps reading what it opened.
"""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING

import pytest
from fs_support import MIB, SIZES, Child, files_of, payload, poll

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ckptfs.testing.mounts import Mount

NEW = payload(2 * MIB + 77, seed=99)


def _forget_pages(path: Path) -> None:
    """Make later reads of the file go to the daemon."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("flags", [os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_CREAT])
def test_a_reader_keeps_what_it_opened(here: Path, size: int, flags: int) -> None:
    """A handle opened before reads the old bytes, whole, to its end; a later one reads the new."""
    path = here / "f"
    path.write_bytes(payload(size))
    _forget_pages(path)
    with path.open("rb", buffering=0) as reader:
        first = reader.read(size // 2)
        writer = os.open(path, flags | os.O_TRUNC)
        assert os.stat(path).st_size == 0
        os.write(writer, NEW[:MIB])
        assert os.fstat(reader.fileno()).st_size == size
        assert first + reader.read() == payload(size)
        os.write(writer, NEW[MIB:])
        os.close(writer)
        assert os.pread(reader.fileno(), size + 1, 0) == payload(size)
        assert path.read_bytes() == NEW
        os.posix_fadvise(reader.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        assert os.pread(reader.fileno(), size + 1, 0) == payload(size)
    assert path.read_bytes() == NEW


def test_every_generation_stays_for_its_reader(here: Path) -> None:
    """ATM-1: one open, one content, however often the file is rewritten."""
    path = here / "f"
    readers = []
    for generation in range(6):
        path.write_bytes(payload(300_000, generation))
        readers.append(path.open("rb", buffering=0))
    for generation, reader in enumerate(readers):
        with reader:
            assert reader.read() == payload(300_000, generation), generation


def test_a_map_of_the_old_content_never_faults(here: Path) -> None:
    """No SIGBUS: pages of an old map that were never touched come in whole after the file was rewritten smaller."""
    path, size = here / "f", 8 * MIB
    path.write_bytes(payload(size))
    _forget_pages(path)

    def touch_late() -> bool:
        with open("f", "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            file.close()
            with open("mapped", "wb"):
                pass
            while not os.path.exists("rewritten"):
                pass
            return view[:] == payload(size)

    child = Child(touch_late, cwd=here)
    poll((here / "mapped").exists, "the child has mapped the file")
    path.write_bytes(b"short")
    (here / "rewritten").touch()
    assert child.result() is True
    assert path.read_bytes() == b"short"


def test_all_names_of_the_file_are_rewritten(here: Path) -> None:
    """Hard links share one content: a rewrite through one name is a rewrite of all, attributes kept."""
    path, twin = here / "f", here / "twin"
    path.write_bytes(b"old")
    path.chmod(0o640)
    os.setxattr(path, "user.note", b"kept")
    os.link(path, twin)
    with twin.open("rb", buffering=0) as reader:
        path.write_bytes(b"new content")
        assert reader.read() == b"old"
        assert twin.read_bytes() == b"new content"
    assert path.stat().st_ino == twin.stat().st_ino
    assert path.stat().st_nlink == 2
    assert path.stat().st_mode & 0o777 == 0o640
    assert os.getxattr(twin, "user.note") == b"kept"


def test_another_name_leads_to_the_new_content_at_once(here: Path) -> None:
    """Also where the kernel knows that name already, and where it is renamed the moment after the rewrite."""
    for number in range(120):
        path, twin, moved = (here / f"{name}{number}" for name in ("f", "twin", "moved"))
        path.write_bytes(payload(10_000, number))
        os.link(path, twin)
        with twin.open("rb", buffering=0) as reader:
            path.write_bytes(b"new")
            twin.rename(moved)
            with moved.open("r+b", buffering=0) as writer:
                assert os.fstat(writer.fileno()).st_nlink == 2, number
                assert writer.read() == b"new", number
                writer.write(b" and more")
            assert path.read_bytes() == moved.read_bytes() == b"new and more", number
            assert reader.read() == payload(10_000, number)


def test_a_handle_that_also_writes_is_no_mere_reader(here: Path) -> None:
    """A second writer joins the content that is being written: both see one file, as POSIX has it."""
    path = here / "f"
    path.write_bytes(b"0123456789")
    with path.open("r+b", buffering=0) as first:
        with path.open("wb", buffering=0) as second:
            assert os.fstat(first.fileno()).st_size == 0
            second.write(b"second")
            assert os.pread(first.fileno(), 100, 0) == b"second"
        os.pwrite(first.fileno(), b"F", 0)
    assert path.read_bytes() == b"Fecond"


def test_a_writer_that_has_closed_is_no_writer(here: Path) -> None:
    """From the moment close(2) has returned, although sealing what it wrote takes longer."""
    for number in range(60):
        path = here / f"f{number}"
        writer = os.open(path, os.O_CREAT | os.O_WRONLY, 0o644)
        os.write(writer, payload(200_000, number))
        with path.open("rb", buffering=0) as reader:
            os.close(writer)
            os.close(os.open(path, os.O_WRONLY | os.O_TRUNC))
            assert os.pread(reader.fileno(), 200_001, 0) == payload(200_000, number), number
        assert path.stat().st_size == 0


def _truncating_open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_TRUNC)


def _truncate_to_zero(path: Path) -> int:
    fd = os.open(path, os.O_WRONLY)
    os.ftruncate(fd, 0)
    return fd


@pytest.mark.parametrize("begin", [_truncating_open, _truncate_to_zero])
def test_the_bucket_and_a_crash_keep_the_old_content_until_close(
    mount: Mount, bucket: Path, begin: Callable[[Path], int]
) -> None:
    """Until the new content is closed or synced, the bucket has the old one, and a killed daemon leaves the old one."""
    path = mount.path / "model.pt"
    path.write_bytes(payload(3 * MIB))
    mount.wait()
    assert (bucket / "model.pt").read_bytes() == payload(3 * MIB)
    fd = begin(path)
    for start in range(0, len(NEW), 100_000):
        os.write(fd, NEW[start : start + 100_000])
    (mount.path / "later").write_bytes(b"published after the rewrite was begun")
    poll((bucket / "later").exists, "another file, written later, is published")
    assert (bucket / "model.pt").read_bytes() == payload(3 * MIB)
    mount.kill()
    with pytest.raises(OSError, match=r"."):
        os.close(fd)
    mount.remount()
    assert path.read_bytes() == payload(3 * MIB)
    mount.wait()
    assert (bucket / "model.pt").read_bytes() == payload(3 * MIB)


def test_a_sync_makes_the_new_content_the_one_a_crash_leaves(mount: Mount) -> None:
    """... or synced: after fsync the new bytes are what is found, although the file was never closed."""
    path = mount.path / "f"
    path.write_bytes(b"old" * 1000)
    fd = os.open(path, os.O_WRONLY | os.O_TRUNC)
    os.write(fd, NEW)
    os.fsync(fd)
    mount.kill()
    with pytest.raises(OSError, match=r"."):
        os.close(fd)
    mount.remount()
    assert path.read_bytes() == NEW


def test_a_rewrite_is_never_seen_half_in_the_bucket(mount: Mount, bucket: Path) -> None:
    """ATM-3: whoever lists the bucket finds one of the whole contents, at every moment."""
    path, target = mount.path / "f", bucket / "f"
    whole = {payload(400_000 + generation, generation) for generation in range(12)}
    path.write_bytes(payload(400_000, 0))
    poll(target.exists, "the first content is published")
    for generation in range(1, 12):
        fd = os.open(path, os.O_WRONLY | os.O_TRUNC)
        data = payload(400_000 + generation, generation)
        for start in range(0, len(data), 50_000):
            os.write(fd, data[start : start + 50_000])
            assert target.read_bytes() in whole
        os.close(fd)
        assert target.read_bytes() in whole
    mount.wait()
    assert files_of(bucket)[b"f"] == payload(400_011, 11)
