"""FIELD.md §3, the reports of little local space: a full cache directory loses nothing and lies to nobody."""

from __future__ import annotations

import errno
import os
import subprocess
from typing import IO, TYPE_CHECKING

import pytest
from fs_support import MIB, Child, bucket_files, errno_of, files_of, payload, poll, put, sha256_of

from ckptfs.testing.mounts import Mount

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DISK_BYTES = 128 * MIB


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own for the cache directory: as full as a test makes it."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", disk], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


@pytest.fixture
def small_mount(tmp_path: Path, bucket: Path, small_disk: Path) -> Iterator[Mount]:
    """A mount whose cache directory lies on the small disk."""
    with Mount(bucket.as_uri(), tmp_path / "mnt", small_disk / "cache") as mount:
        yield mount


def _write(path: str | Path, size: int, seed: int) -> int:
    """Write, sync and close; the first errno met, 0 without."""
    block = payload(MIB, seed)
    first = 0
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
    try:
        for _ in range(size // MIB):
            os.write(fd, block)
        os.fsync(fd)
    except OSError as error:
        first = error.errno or errno.EIO
    try:
        os.close(fd)
    except OSError as error:
        first = first or error.errno or errno.EIO
    return first


def test_no_space_leaves_no_short_object(small_mount: Mount, bucket: Path) -> None:
    """gcsfuse#77: a file larger than the disk is ENOSPC and never in the bucket; the rest goes on."""
    root = small_mount.path
    (root / "before").write_bytes(payload(MIB))
    (root / "old.ckpt").write_bytes(payload(MIB, 1))
    small_mount.wait()
    for name in ("new.ckpt", "old.ckpt"):
        assert _write(root / name, 2 * DISK_BYTES, 2) == errno.ENOSPC
        found = bucket_files(bucket)
        assert found == {b"before": payload(MIB), b"old.ckpt": payload(MIB, 1)}, "only whole contents are in the bucket"
    for name in ("new.ckpt", "old.ckpt"):
        (root / name).unlink()
    free = poll(
        lambda: os.statvfs(root).f_bavail * os.statvfs(root).f_frsize > DISK_BYTES // 2, "the space is free again"
    )
    assert free
    assert _write(root / "after", 8 * MIB, 3) == 0
    small_mount.wait()
    assert bucket_files(bucket) == {b"before": payload(MIB), b"after": payload(MIB, 3) * 8}


def test_several_writers_larger_than_the_disk(small_mount: Mount, bucket: Path) -> None:
    """s3fs-fuse#2621, #2463: more is written than the disk holds: all of it arrives, no zeros, no deadlock.

    Who is told that there is no space tries again: publication makes room.
    """
    per_writer, size = 6, 16 * MIB

    def write_until_it_fits(name: str, seed: int) -> bool:
        result = _write(name, size, seed)
        assert result in (0, errno.ENOSPC)
        return result == 0

    def write(writer: int) -> None:
        for number in range(per_writer):
            name, seed = f"w{writer}-{number}", writer * 100 + number
            poll(lambda n=name, s=seed: write_until_it_fits(n, s), f"{name} finds room")

    for child in [Child(lambda w=writer: write(w), cwd=small_mount.path) for writer in range(3)]:
        child.result()
    small_mount.wait()
    for writer in range(3):
        for number in range(per_writer):
            expected = payload(MIB, writer * 100 + number) * (size // MIB)
            assert (bucket / f"w{writer}-{number}").read_bytes() == expected
            assert (small_mount.path / f"w{writer}-{number}").read_bytes() == expected


def test_reading_more_than_the_disk_evicts_nothing_unsent(small_mount: Mount, bucket: Path) -> None:
    """alluxio#14807: read pressure takes clean bytes only: all that was written is published, all read is right."""
    for number in range(12):
        put(bucket, f"read/f{number}", payload(16 * MIB, number))

    def read() -> list[str]:
        return [sha256_of(os.path.join(b"read", b"f%d" % number)) for number in range(12)]

    reader = Child(read, cwd=small_mount.path)
    written = {b"written/%d" % number: payload(3 * MIB, 50 + number) for number in range(20)}
    (small_mount.path / "written").mkdir()
    for name, data in written.items():
        (small_mount.path / os.fsdecode(name)).write_bytes(data)
    assert reader.result() == [sha256_of(bucket / "read" / f"f{number}") for number in range(12)]
    small_mount.wait()
    assert {key: data for key, data in bucket_files(bucket).items() if key.startswith(b"written/")} == written


def _fill(file: IO[bytes]) -> None:
    while True:
        file.write(bytes(64 * 1024))


def test_a_full_disk_starts_and_drains(small_mount: Mount, small_disk: Path, bucket: Path) -> None:
    """rclone#4442: with the cache directory's disk at 100 % the mount starts, and drains what it holds."""
    expected = {b"f%d" % number: payload(4 * MIB, number) for number in range(8)}
    for name, data in expected.items():
        (small_mount.path / os.fsdecode(name)).write_bytes(data)
    small_mount.umount(drain=False)
    with (small_disk / "filler").open("wb", buffering=0) as filler:
        assert errno_of(lambda: _fill(filler)) == errno.ENOSPC
    small_mount.remount()
    assert files_of(small_mount.path) == expected
    small_mount.umount()
    assert bucket_files(bucket) == expected
