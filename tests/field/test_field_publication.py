"""FIELD.md §3, the reports about what reached the bucket: all of it, at full size, whole, or not at all."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest
from fs_support import (
    KIB,
    MIB,
    NAMES,
    SIZES,
    Child,
    bucket_files,
    files_of,
    key_of,
    payload,
    poll,
    sha256_of,
    start_python,
)

from ckptfs.testing.mounts import CommandFailedError, Mount

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


def _write_hundred(root: Path) -> dict[bytes, bytes]:
    expected = {}
    for number in range(100):
        (root / f"d{number % 7}").mkdir(exist_ok=True)
        expected[f"d{number % 7}/f{number}".encode()] = payload(number * 3001, number)
        (root / f"d{number % 7}" / f"f{number}").write_bytes(expected[f"d{number % 7}/f{number}".encode()])
    return expected


def test_a_draining_unmount_loses_nothing(mount: Mount, bucket: Path) -> None:
    """rclone#7309, #8767: 100 files, unmounted at once: all of them are in the bucket when ``umount`` says so."""
    expected = _write_hundred(mount.path)
    mount.umount()
    assert bucket_files(bucket) == expected


def test_a_hasty_unmount_keeps_the_rest_for_the_next_mount(mount: Mount, bucket: Path) -> None:
    """rclone#7309, #8767: with ``--no-drain`` what is not published yet is kept, and the next mount publishes it."""
    expected = _write_hundred(mount.path)
    mount.umount(drain=False)
    found = bucket_files(bucket)
    assert found == {key: data for key, data in expected.items() if key in found}, "what is there is whole"
    mount.remount()
    assert files_of(mount.path) == expected
    mount.wait()
    assert bucket_files(bucket) == expected


def test_sizes_around_every_boundary(mount: Mount, bucket: Path) -> None:
    """azure-storage-fuse#1505: never zero-sized, never cut at a block: byte-equal in the bucket and back from it."""
    sizes = {*SIZES, 16 * MIB - 1, 16 * MIB, 16 * MIB + 1, 33 * MIB + 5}
    expected = {f"f{size}".encode(): payload(size) for size in sizes}
    for size in sizes:
        with (mount.path / f"f{size}").open("wb", buffering=0) as file:
            for start in range(0, size, MIB):
                file.write(expected[b"f%d" % size][start : start + MIB])
    mount.wait()
    assert bucket_files(bucket) == expected
    mount.wipe_cache_and_remount()
    for size in sizes:
        assert (mount.path / f"f{size}").stat().st_size == size
    assert files_of(mount.path) == expected


def test_no_holes_in_files_of_parallel_writers(mount: Mount, bucket: Path) -> None:
    """azure-storage-fuse#2348: 100 large files, each by several writers out of order: SHA-256 equal in the bucket."""
    piece, pieces = 512 * KIB, 6

    def write(worker: int) -> dict[str, str]:
        digests = {}
        for number in range(worker, 100, 4):
            data = payload(piece * pieces + number, number)
            handles = [os.open(f"f{number}", os.O_CREAT | os.O_WRONLY, 0o644) for _ in range(3)]
            for index in (5, 0, 3, 1, 4, 2):
                part = data[index * piece : (index + 1) * piece if index < pieces - 1 else None]
                assert os.pwrite(handles[index % 3], part, index * piece) == len(part)
            for handle in handles:
                os.close(handle)
            digests[f"f{number}"] = hashlib.sha256(data).hexdigest()
        return digests

    expected: dict[str, str] = {}
    for child in [Child(lambda w=worker: write(w), cwd=mount.path) for worker in range(4)]:
        digests = child.result()
        assert isinstance(digests, dict)
        expected.update(digests)
    mount.wait()
    assert {path.name: sha256_of(path) for path in bucket.iterdir() if path.is_file()} == expected


def test_special_characters_in_names(mount: Mount, bucket: Path) -> None:
    """s3-connector-for-pytorch#295: names with every special character arrive at their own key and come back."""
    expected = {b"dir/" + name: payload(1000, number) for number, name in enumerate(NAMES)}
    expected |= {name + b"/f": payload(10, number) for number, name in enumerate(NAMES)}
    root = os.fsencode(mount.path)
    for key, data in expected.items():
        os.makedirs(os.path.join(root, os.path.dirname(key)), exist_ok=True)
        with open(os.path.join(root, key), "wb") as file:
            file.write(data)
    mount.wait()
    assert bucket_files(bucket) == {key_of(path): data for path, data in expected.items()}
    mount.wipe_cache_and_remount()
    assert files_of(mount.path) == expected


def test_a_name_too_long_for_a_key_is_reported(mount: Mount, bucket: Path) -> None:
    """Decision 0005: 255 bytes that are not UTF-8 make no key: the file stays in the mount, and status says why."""
    name = b"\xf0" * 255
    path = os.path.join(os.fsencode(mount.path), name)
    with open(path, "wb") as file:
        file.write(b"stays")
    (mount.path / "other").write_bytes(b"goes on")
    poll(lambda: mount.status()["errors"], "the failing file is reported")
    poll(lambda: bucket_files(bucket) == {b"other": b"goes on"}, "the other file is published")
    with pytest.raises(CommandFailedError):
        mount.wait(timeout_s=2)
    with open(path, "rb") as file:
        assert file.read() == b"stays"


def test_special_characters_in_keys_of_s3(s3_mount: Mount) -> None:
    """s3-connector-for-pytorch#295, against a real server: names that S3 can carry come back from the bucket alone."""
    names = [name for name in NAMES if b"\\" not in name]  # the test server makes a slash of a backslash
    expected = {b"dir/" + name: payload(1000, number) for number, name in enumerate(names)}
    root = os.fsencode(s3_mount.path)
    os.mkdir(os.path.join(root, b"dir"))
    for key, data in expected.items():
        with open(os.path.join(root, key), "wb") as file:
            file.write(data)
    s3_mount.wait()
    s3_mount.wipe_cache_and_remount()
    assert files_of(s3_mount.path) == expected


def _cut(path: Path) -> None:
    os.truncate(path, 5000)


def _append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def _clear(path: Path) -> None:
    os.truncate(path, 0)


@pytest.mark.parametrize("change", [_cut, _append, _clear])
def test_a_change_right_after_a_close_is_published(mount: Mount, bucket: Path, change: Callable[[Path], None]) -> None:
    """azure-storage-fuse#1505: the seal of one close is overtaken by the next change: the last state is published."""
    for number in range(80):
        path = mount.path / f"f{number}"
        with path.open("wb", buffering=0) as file:
            file.write(payload(20_000, number))
            if number % 2:
                os.fsync(file.fileno())
        change(path)
    expected = files_of(mount.path)
    assert len(expected) == 80
    mount.wait()
    assert bucket_files(bucket) == expected


@pytest.fixture(params=["symlink", "bind mount"])
def odd_cache_mount(request: pytest.FixtureRequest, tmp_path: Path, bucket: Path) -> Iterator[Mount]:
    """A mount whose cache directory is reached through a symlink or a bind mount."""
    real, cache = tmp_path / "real", tmp_path / "cache"
    real.mkdir()
    if request.param == "symlink":
        cache.symlink_to(real)
    else:
        cache.mkdir()
        subprocess.run(["mount", "--bind", real, cache], check=True)
    try:
        with Mount(bucket.as_uri(), tmp_path / "mnt", cache) as mounted:
            yield mounted
    finally:
        if request.param == "bind mount":
            subprocess.run(["umount", cache], check=True)


def test_a_cache_directory_behind_a_symlink(odd_cache_mount: Mount, bucket: Path) -> None:
    """S3QL 5.1.1: with C behind a symlink or a bind mount everything is published, and found again."""
    expected = _write_hundred(odd_cache_mount.path)
    odd_cache_mount.wait()
    assert bucket_files(bucket) == expected
    (odd_cache_mount.path / "more").write_bytes(b"more")
    odd_cache_mount.kill()
    odd_cache_mount.remount()
    assert files_of(odd_cache_mount.path) == {**expected, b"more": b"more"}
    odd_cache_mount.umount()
    assert bucket_files(bucket) == {**expected, b"more": b"more"}


_SLOW_WRITER = """
import os, sys
fd = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
for number in range(40):
    os.write(fd, bytes([number]) * 100_000)
print("half", flush=True)
sys.stdin.readline()
"""


def test_an_unclosed_file_is_not_published(mount: Mount, bucket: Path) -> None:
    """Lightning#688: what a writer has not closed is not in the bucket, before and after the daemon is killed."""
    (mount.path / "model.ckpt").write_bytes(b"good" * 1000)
    mount.wait()
    with (
        start_python(_SLOW_WRITER, mount.path / "model.ckpt") as writer,
        start_python(_SLOW_WRITER, mount.path / "fresh.ckpt") as fresh,
    ):
        for process in (writer, fresh):
            assert process.stdout is not None
            assert process.stdout.readline() == "half\n"
        (mount.path / "other").write_bytes(b"closed later")
        poll((bucket / "other").exists, "a file that was closed is published")
        assert bucket_files(bucket) == {b"model.ckpt": b"good" * 1000, b"other": b"closed later"}
        mount.kill()
        for process in (writer, fresh):
            process.kill()
    mount.remount()
    assert (mount.path / "model.ckpt").read_bytes() == b"good" * 1000
    (mount.path / "later").write_bytes(b"later")
    mount.wait(mount.path / "later")
    mount.wait(mount.path / "model.ckpt")
    assert bucket_files(bucket) == {
        b"model.ckpt": b"good" * 1000,
        b"other": b"closed later",
        b"later": b"later",
    }


def test_a_killed_writer_harms_nobody_else(mount: Mount, bucket: Path) -> None:
    """Lightning#688: after SIGKILL in the middle of a write the mount goes on, and the file can be written again."""
    with start_python(_SLOW_WRITER, mount.path / "model.ckpt") as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "half\n"
        writer.send_signal(signal.SIGKILL)
        assert writer.wait(timeout=30) == -signal.SIGKILL
    (mount.path / "model.ckpt").write_bytes(b"whole")
    (mount.path / "other").write_bytes(b"other")
    mount.wait()
    assert bucket_files(bucket) == {b"model.ckpt": b"whole", b"other": b"other"}
    for path in mount.path.iterdir():
        path.unlink()
    mount.wait()
    assert bucket_files(bucket) == {}
