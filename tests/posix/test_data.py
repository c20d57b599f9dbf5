"""Bytes: sparse files, append, direct I/O, mappings, copies, limits, space."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
from typing import TYPE_CHECKING

import pytest
from fs_support import KIB, MIB, SIZES, Child, as_user, errno_of, payload, sha256_of

if TYPE_CHECKING:
    from pathlib import Path

    from ckptfs.testing.mounts import Mount


@pytest.mark.parametrize("size", SIZES)
def test_bytes_are_kept(here: Path, size: int) -> None:
    """write(2), read(2): in one write and in odd pieces, read whole and from every side of a boundary."""
    (here / "once").write_bytes(payload(size))
    with (here / "pieces").open("wb", buffering=0) as file:
        data, step = payload(size), 100_003
        for start in range(0, size, step):
            file.write(data[start : start + step])
    for name in ("once", "pieces"):
        assert (here / name).stat().st_size == size
        assert (here / name).read_bytes() == payload(size)
        with (here / name).open("rb", buffering=0) as file:
            for offset in {0, 1, size // 2, max(size - 1, 0), size, size + 1}:
                assert os.pread(file.fileno(), 5000, offset) == payload(size)[offset : offset + 5000]


def test_holes_read_as_zeros(here: Path) -> None:
    """lseek(2), truncate(2): what was never written is zeros, and costs no space."""
    path = here / "sparse"
    with path.open("w+b", buffering=0) as file:
        os.pwrite(file.fileno(), b"tail", 50 * MIB)
        os.pwrite(file.fileno(), b"middle", 10 * MIB + 1)
        file.truncate(60 * MIB)
        os.fsync(file.fileno())
    data = path.read_bytes()
    assert len(data) == path.stat().st_size == 60 * MIB
    assert data[10 * MIB + 1 : 10 * MIB + 7] == b"middle"
    assert data[50 * MIB : 50 * MIB + 4] == b"tail"
    assert data.count(0) == len(data) - 10
    assert path.stat().st_blocks * 512 < 8 * MIB


def test_seek_data_and_hole(here: Path) -> None:
    """lseek(2): as exact as the filesystem likes, but never a hole where data is, and always one at the end."""
    path = here / "sparse"
    with path.open("w+b", buffering=0) as file:
        fd = file.fileno()
        os.pwrite(fd, b"x" * 4096, 0)
        os.pwrite(fd, b"y" * 4096, 20 * MIB)
        os.fsync(fd)
        size = 20 * MIB + 4096
        assert os.lseek(fd, 0, os.SEEK_DATA) == 0
        assert os.lseek(fd, 20 * MIB, os.SEEK_DATA) == 20 * MIB
        assert os.lseek(fd, 20 * MIB, os.SEEK_HOLE) == size
        assert 4096 <= os.lseek(fd, 0, os.SEEK_HOLE) <= size
        assert 4096 <= os.lseek(fd, 5000, os.SEEK_DATA) <= 20 * MIB
        for whence in (os.SEEK_DATA, os.SEEK_HOLE):
            assert errno_of(lambda whence=whence: os.lseek(fd, size, whence)) == errno.ENXIO


def test_truncated_and_grown_again_is_zeros(here: Path) -> None:
    """truncate(2): bytes that were cut off never come back."""
    path = here / "f"
    for size in (1, 4095, 4096, 4097, 100_000):
        path.write_bytes(b"\xaa" * 200_000)
        os.truncate(path, size)
        os.truncate(path, 150_000)
        assert path.read_bytes() == b"\xaa" * size + bytes(150_000 - size)


def test_append_from_many_processes(here: Path) -> None:
    """open(2), O_APPEND: writes of several processes follow each other, none overwrites another."""

    def append(number: int) -> None:
        fd = os.open("log", os.O_WRONLY | os.O_APPEND)
        for line in range(200):
            os.write(fd, b"%d %d\n" % (number, line))
        os.close(fd)

    (here / "log").touch()
    for child in [Child(lambda n=n: append(n), cwd=here) for n in range(4)]:
        child.result()
    lines = (here / "log").read_bytes().splitlines()
    assert sorted(lines) == sorted(b"%d %d" % (n, line) for n in range(4) for line in range(200))


def test_append_ignores_the_position(here: Path) -> None:
    """O_APPEND: at the end as it is now, whatever was sought, truncated or written elsewhere."""
    path = here / "f"
    path.write_bytes(b"0123456789")
    with path.open("ab", buffering=0) as log:
        os.lseek(log.fileno(), 0, os.SEEK_SET)
        log.write(b"A")
        os.truncate(path, 4)
        log.write(b"B")
        with path.open("r+b", buffering=0) as other:
            other.seek(0, os.SEEK_END)
            other.write(b"C")
        log.write(b"D")
    assert path.read_bytes() == b"0123BCD"


def test_direct_io(here: Path) -> None:
    """FIELD §1 (DeepSpeed FAST): O_DIRECT, 512 B aligned, out of order, beside buffered I/O, then an append reopen."""
    path = here / "f"
    piece, count = 64 * KIB, 32
    data = payload(piece * count + 1536)
    fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_DIRECT)
    with mmap.mmap(-1, piece) as buffer:
        for index in [*range(1, count, 2), *range(0, count, 2)]:
            buffer[:] = data[index * piece : (index + 1) * piece]
            assert os.pwritev(fd, [buffer], index * piece) == piece
        buffer[:1536] = data[count * piece :]
        with memoryview(buffer) as view:
            assert os.pwritev(fd, [view[:1536]], count * piece) == 1536
            assert os.preadv(fd, [view[:512]], 512) == 512
            assert bytes(view[:512]) == data[512:1024]
    os.close(fd)
    with path.open("ab", buffering=0) as tail:
        tail.write(b"odd tail")
    assert path.read_bytes() == data + b"odd tail"


def test_direct_reads_see_buffered_writes_and_the_other_way(here: Path) -> None:
    """open(2), O_DIRECT: one file, one content."""
    path = here / "f"
    with path.open("w+b", buffering=0) as buffered, mmap.mmap(-1, 4096) as page:
        buffered.write(b"b" * 8192)
        fd = os.open(path, os.O_RDWR | os.O_DIRECT)
        assert os.preadv(fd, [page], 4096) == 4096
        assert page[:] == b"b" * 4096
        page[:] = b"d" * 4096
        assert os.pwritev(fd, [page], 0) == 4096
        assert os.pread(buffered.fileno(), 8192, 0) == b"d" * 4096 + b"b" * 4096
        os.close(fd)


def test_shared_maps_are_the_file(here: Path) -> None:
    """MAP_SHARED: stores reach other maps and read(2) at once, and stay after munmap and close."""
    path = here / "f"
    path.write_bytes(payload(10_000))
    with (
        path.open("r+b", buffering=0) as file,
        path.open("rb", buffering=0) as reader,
        mmap.mmap(file.fileno(), 0) as writable,
        mmap.mmap(reader.fileno(), 0, access=mmap.ACCESS_READ) as view,
    ):
        writable[5000:5004] = b"mmap"
        assert view[5000:5004] == b"mmap"
        assert os.pread(reader.fileno(), 4, 5000) == b"mmap"
        os.pwrite(file.fileno(), b"write", 6000)
        assert view[6000:6005] == b"write"
        writable.flush()
    with path.open("rb") as file:
        data = file.read()
    assert data == payload(10_000)[:5000] + b"mmap" + payload(10_000)[5004:6000] + b"write" + payload(10_000)[6005:]


def test_a_map_outlives_its_descriptor(here: Path) -> None:
    """mmap(2): stores after close(2) of the descriptor are kept too."""
    path = here / "f"
    path.write_bytes(bytes(3 * 4096))
    fd = os.open(path, os.O_RDWR)
    with mmap.mmap(fd, 0) as view:
        os.close(fd)
        view[4096:4100] = b"late"
        view.flush()
    assert path.read_bytes() == bytes(4096) + b"late" + bytes(2 * 4096 - 4)


def test_private_maps_change_nothing(here: Path) -> None:
    """MAP_PRIVATE (safetensors and torch ``mmap=True``): reads the file, keeps its stores to itself."""
    path = here / "f"
    path.write_bytes(payload(MIB))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as view:
        assert view[:] == payload(MIB)
        view[0:4] = b"mine"
    assert path.read_bytes() == payload(MIB)


def test_copies_inside_and_across(here: Path, tmp_path: Path) -> None:
    """copy_file_range(2), sendfile(2), splice: from the mount, onto it and within it."""
    size = 3 * MIB + 11
    (here / "source").write_bytes(payload(size))
    (tmp_path / "local").write_bytes(payload(size))
    for source in (here / "source", tmp_path / "local"):
        # copy_file_range(2) between filesystems of different types is EXDEV on every one of them.
        copies = (os.copy_file_range, _sendfile) if source.parent == here else (_sendfile,)
        for number, copy in enumerate(copies):
            target = here / f"{source.name}{number}"
            with source.open("rb") as reader, target.open("wb") as writer:
                left = size
                while left:
                    left -= copy(reader.fileno(), writer.fileno(), left)
            assert target.read_bytes() == payload(size)
    shutil.copyfile(here / "source", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == payload(size)


def _sendfile(source: int, target: int, count: int) -> int:
    return os.sendfile(target, source, None, count)


def test_posix_fallocate(here: Path) -> None:
    """posix_fallocate(3): grows as asked, keeps what is there (the C library stands in for a driver without)."""
    with (here / "f").open("w+b", buffering=0) as file:
        file.write(b"kept")
        os.posix_fallocate(file.fileno(), 0, 100_000)
        assert os.fstat(file.fileno()).st_size == 100_000
        assert os.pread(file.fileno(), 100_000, 0) == b"kept" + bytes(99_996)


def test_open_refusals(here: Path) -> None:
    """open(2): the errno that the manual names."""
    (here / "d").mkdir()
    (here / "f").write_bytes(b"")
    for path, flags, expected in (
        ("f", os.O_CREAT | os.O_EXCL | os.O_WRONLY, errno.EEXIST),
        ("d", os.O_WRONLY, errno.EISDIR),
        ("d", os.O_RDONLY | os.O_TRUNC, errno.EISDIR),
        ("f", os.O_RDONLY | os.O_DIRECTORY, errno.ENOTDIR),
        ("f/x", os.O_RDONLY, errno.ENOTDIR),
        ("none", os.O_RDONLY, errno.ENOENT),
        ("none/x", os.O_CREAT | os.O_WRONLY, errno.ENOENT),
        ("n" * 256, os.O_CREAT | os.O_WRONLY, errno.ENAMETOOLONG),
    ):
        assert errno_of(lambda path=path, flags=flags: os.open(here / path, flags)) == expected, (path, flags)


def test_exclusive_creation_has_one_winner(here: Path) -> None:
    """O_CREAT | O_EXCL, mkdir, link: of many at once exactly one succeeds."""

    def attempt() -> list[bool]:
        won = []
        for number in range(50):
            won.append(errno_of(lambda n=number: os.close(os.open(f"f{n}", os.O_CREAT | os.O_EXCL | os.O_WRONLY))) == 0)
            won.append(errno_of(lambda n=number: os.mkdir(f"d{n}")) == 0)
            won.append(errno_of(lambda n=number: os.link("source", f"l{n}")) == 0)
        return won

    (here / "source").touch()
    results = [child.result() for child in [Child(attempt, cwd=here) for _ in range(4)]]
    assert all(sum(wins) == 1 for wins in zip(*results, strict=True))


def test_statvfs_is_believable(shared_mount: Mount, here: Path) -> None:
    """DESIGN §1: the space is that of the staging: never more than the cache directory's disk has."""
    told, disk = os.statvfs(here), os.statvfs(shared_mount.cache_dir)
    assert told.f_namemax == 255
    assert 0 < told.f_bavail * told.f_frsize <= disk.f_bfree * disk.f_frsize + 64 * MIB
    assert told.f_bavail <= told.f_bfree <= told.f_blocks
    assert told.f_blocks * told.f_frsize <= disk.f_blocks * disk.f_frsize
    assert 0 < told.f_ffree <= told.f_files
    assert shutil.disk_usage(here).free > 0


def test_deep_trees(here: Path) -> None:
    """200 directories deep, beyond PATH_MAX when named from the root: made, walked, moved and removed step by step."""

    def go_down_and_up() -> int:
        os.mkdir("top")
        os.chdir("top")
        for _ in range(200):
            os.mkdir("n" * 100)
            os.chdir("n" * 100)
        with open("leaf", "wb") as leaf:
            leaf.write(b"deep")
        for _ in range(200):
            os.chdir("..")
        os.chdir("..")
        os.rename("top", "moved")
        depth = 0
        os.chdir("moved")
        while os.path.isdir("n" * 100):
            os.chdir("n" * 100)
            depth += 1
        with open("leaf", "rb") as leaf:
            assert leaf.read() == b"deep"
        return depth

    assert as_user(go_down_and_up, cwd=here, uid=0) == 200
    shutil.rmtree(here / "moved")
    assert os.listdir(here) == []


def test_many_writers_of_one_file(here: Path) -> None:
    """FIELD §1 (HF consolidation): several processes write disjoint ranges through handles of their own."""
    size, writers = 8 * MIB, 4
    data = payload(size)
    (here / "f").touch()

    def write(number: int) -> None:
        fd = os.open("f", os.O_RDWR)
        for start in range(number * 100_000, size, writers * 100_000):
            os.pwrite(fd, data[start : start + 100_000], start)
        os.close(fd)

    for child in [Child(lambda n=n: write(n), cwd=here) for n in range(writers)]:
        child.result()
    assert (here / "f").read_bytes() == data


def test_two_truncating_writers_share_one_content(here: Path) -> None:
    """DESIGN §2: a second writer joins the content that is being written, as POSIX has it."""
    path = here / "f"
    path.write_bytes(b"o" * 100)
    with path.open("wb", buffering=0) as first:
        first.write(b"first " * 5)
        with path.open("wb", buffering=0) as second:
            assert os.fstat(first.fileno()).st_size == 0
            second.write(b"second")
        first.write(b"end")
    assert path.read_bytes() == b"second" + bytes(24) + b"end"


def test_a_large_file(here: Path) -> None:
    """200 MiB by 1 MiB writes, read back by digest."""
    block = payload(MIB)
    with (here / "big").open("wb", buffering=0) as file:
        for number in range(200):
            file.write(number.to_bytes(4, "big") + block[4:])
    assert (here / "big").stat().st_size == 200 * MIB
    first = sha256_of(here / "big")
    os.posix_fadvise(fd := os.open(here / "big", os.O_RDONLY), 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
    assert sha256_of(here / "big") == first
    with (here / "big").open("rb") as file:
        file.seek(150 * MIB)
        assert file.read(4) == (150).to_bytes(4, "big")
