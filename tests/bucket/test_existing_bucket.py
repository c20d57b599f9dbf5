"""A bucket that already holds data is mounted as it is (DESIGN §1): no format step, no import, every object a file."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest
from fs_support import SIZES, bucket_files, errno_of, files_of, payload, poll, put

from ckptfs.testing.mounts import Mount

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ckptfs.testing.servers import WeedServer


@pytest.fixture
def existing(bucket: Path) -> dict[bytes, bytes]:
    """Objects that other tools put before the mount."""
    objects = {f"sizes/f{size}": payload(size) for size in SIZES}
    objects |= {f"a/b/c/d{number}/e/f": payload(number) for number in range(10)}
    objects |= {"top": b"top", "ünï côdé/☃": b"snow"}
    for key, data in objects.items():
        put(bucket, key, data)
    return {key.encode(): data for key, data in objects.items()}


@pytest.fixture
def mounted(existing: dict[bytes, bytes], tmp_path: Path, bucket: Path) -> Iterator[Mount]:
    """The bucket with its objects, mounted."""
    assert existing
    with Mount(bucket.as_uri(), tmp_path / "mnt", tmp_path / "cache") as mount:
        yield mount


def test_objects_are_files(existing: dict[bytes, bytes], mounted: Mount) -> None:
    """Byte for byte, at the same keys, with the sizes and times of the objects; directories where keys have slashes."""
    assert files_of(mounted.path) == existing
    assert sorted(os.listdir(mounted.path)) == ["a", "sizes", "top", "ünï côdé"]
    for key, data in existing.items():
        assert os.stat(os.path.join(os.fsencode(mounted.path), key)).st_size == len(data)
    assert abs(os.stat(mounted.path / "top").st_mtime - os.stat(mounted.path.parent / "bucket" / "top").st_mtime) < 2


def test_looking_changes_nothing(existing: dict[bytes, bytes], mounted: Mount, bucket: Path) -> None:
    """Reading through the mount, and unmounting, leave every object as it was: bytes, times, no new keys."""
    before = {path: path.stat().st_mtime_ns for path in bucket.rglob("*") if path.is_file()}
    assert files_of(mounted.path) == existing
    mounted.umount()
    assert bucket_files(bucket) == existing
    outside = {path: at for path, at in before.items() if ".ckptfs" not in path.parts}
    assert {path: path.stat().st_mtime_ns for path in outside} == outside


def test_a_path_is_found_without_listing_above_it(mounted: Mount) -> None:
    """Listing is on demand: a deep path can be opened at once, a missing one is ENOENT."""
    assert (mounted.path / "a" / "b" / "c" / "d7" / "e" / "f").read_bytes() == payload(7)
    assert errno_of(lambda: os.stat(mounted.path / "a" / "b" / "none" / "e")) == errno.ENOENT
    assert errno_of(lambda: os.stat(mounted.path / "top" / "x")) == errno.ENOTDIR


def test_existing_objects_are_changed_like_files(existing: dict[bytes, bytes], mounted: Mount, bucket: Path) -> None:
    """Overwritten, appended to, truncated, patched, renamed, linked, removed: the bucket follows."""
    root, expected = mounted.path, dict(existing)
    (root / "top").write_bytes(b"replaced")
    with (root / "sizes" / "f4096").open("ab") as file:
        file.write(b"appended")
    os.truncate(root / "sizes" / "f4097", 100)
    with (root / "sizes" / f"f{SIZES[-1]}").open("r+b") as file:
        file.seek(5_000_000)
        file.write(b"patched")
    (root / "a" / "b").rename(root / "moved")
    (root / "sizes" / "f1").unlink()
    os.link(root / "sizes" / "f4095", root / "twin")
    (root / "new" / "dir").mkdir(parents=True)
    (root / "new" / "dir" / "f").write_bytes(b"new")

    expected[b"top"] = b"replaced"
    expected[b"sizes/f4096"] += b"appended"
    expected[b"sizes/f4097"] = expected[b"sizes/f4097"][:100]
    big = bytearray(payload(SIZES[-1]))
    big[5_000_000:5_000_007] = b"patched"
    expected[f"sizes/f{SIZES[-1]}".encode()] = bytes(big)
    for key in [key for key in expected if key.startswith(b"a/b/")]:
        expected[b"moved/" + key[4:]] = expected.pop(key)
    del expected[b"sizes/f1"]
    expected[b"twin"] = expected[b"sizes/f4095"]
    expected[b"new/dir/f"] = b"new"

    assert files_of(root) == expected
    mounted.wait()
    assert bucket_files(bucket) == expected
    mounted.wipe_cache_and_remount()
    assert files_of(root) == expected


def test_more_objects_than_a_listing_page(bucket: Path, tmp_path: Path) -> None:
    """Pagination: 2,500 objects and 1,200 directories beside each other, all seen, each once."""
    names = {f"f{number:05d}" for number in range(2500)} | {f"f{number:05d}-d" for number in range(1200)}
    for name in names:
        if name.endswith("-d"):
            (bucket / "many" / name).mkdir(parents=True)
            (bucket / "many" / name / "x").write_bytes(b"x")
        else:
            (bucket / "many").mkdir(exist_ok=True)
            (bucket / "many" / name).write_bytes(name.encode())
    with Mount(bucket.as_uri(), tmp_path / "mnt", tmp_path / "cache") as mount:
        assert sorted(os.listdir(mount.path / "many")) == sorted(names)
        assert (mount.path / "many" / "f02499").read_bytes() == b"f02499"
        assert os.listdir(mount.path / "many" / "f01199-d") == ["x"]


def test_the_reserved_prefix_is_not_there(mount: Mount, bucket: Path) -> None:
    """DESIGN §1: ``.ckptfs/`` is hidden, cannot be made, and no name leads into it; deeper it is a name like others."""
    (mount.path / "f").write_bytes(b"f")
    mount.wait()
    (bucket / ".ckptfs").mkdir(exist_ok=True)
    (bucket / ".ckptfs" / "ours").write_bytes(b"ours")
    assert os.listdir(mount.path) == ["f"]
    assert errno_of(lambda: os.stat(mount.path / ".ckptfs")) == errno.ENOENT
    assert errno_of(lambda: os.stat(mount.path / ".ckptfs" / "ours")) == errno.ENOENT
    assert errno_of(lambda: os.mkdir(mount.path / ".ckptfs")) != 0
    assert errno_of(lambda: (mount.path / ".ckptfs").write_bytes(b"")) != 0
    assert errno_of(lambda: os.rename(mount.path / "f", mount.path / ".ckptfs")) != 0
    assert errno_of(lambda: os.link(mount.path / "f", mount.path / ".ckptfs")) != 0
    (mount.path / "d" / ".ckptfs").mkdir(parents=True)
    (mount.path / "d" / ".ckptfs" / "f").write_bytes(b"a name like others")
    mount.wait()
    assert (bucket / "d" / ".ckptfs" / "f").read_bytes() == b"a name like others"
    assert (bucket / ".ckptfs" / "ours").read_bytes() == b"ours"
    assert sorted(os.listdir(mount.path)) == ["d", "f"]


# --- S3 ------------------------------------------------------------------------------------------------------------


def test_an_s3_bucket_is_mounted_as_it_is(tmp_path: Path, s3_server: WeedServer, s3_bucket: str) -> None:
    """The same over S3, under a prefix: pages of a listing, what is outside of the prefix is not there, all changes."""
    client = s3_server.client()
    objects = {f"pre/fix/many/f{number:04d}": b"%d" % number for number in range(1100)}
    objects |= {f"pre/fix/sizes/f{size}": payload(size) for size in SIZES}
    for key, data in {**objects, "pre/outside": b"1", "pre/fixed": b"2", "top": b"3"}.items():
        client.put_object(Bucket=s3_bucket, Key=key, Body=data)
    url = s3_server.url(s3_bucket, "pre/fix")
    with Mount(url, tmp_path / "mnt", tmp_path / "cache", env=s3_server.credentials()) as mount:
        assert sorted(os.listdir(mount.path)) == ["many", "sizes"]
        assert len(os.listdir(mount.path / "many")) == 1100
        assert files_of(mount.path / "sizes") == {f"f{size}".encode(): payload(size) for size in SIZES}
        (mount.path / "sizes").rename(mount.path / "renamed")
        (mount.path / "many" / "f0000").unlink()
        (mount.path / "many" / "f0001").write_bytes(b"rewritten")
        mount.wait()
    keys = {}
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=s3_bucket):
        keys |= {item["Key"]: item["Size"] for item in page.get("Contents", [])}
    client.close()
    expected = {key.replace("fix/sizes", "fix/renamed"): len(data) for key, data in objects.items()}
    del expected["pre/fix/many/f0000"]
    expected |= {"pre/fix/many/f0001": 9, "pre/outside": 1, "pre/fixed": 1, "top": 1}
    assert {key: size for key, size in keys.items() if not key.startswith("pre/fix/.ckptfs/")} == expected


def test_keys_that_no_file_can_have(tmp_path: Path, s3_server: WeedServer, s3_bucket: str) -> None:
    """Neither crash nor vanish silently: each is counted in ``status`` by its reason and never touched.

    azure-storage-fuse#1142: an object and a prefix of one name are in the bucket side by side.
    """
    client = s3_server.client()
    odd = ["both", "both/child", "x/./y", "x/../z", "empty//name", "long/" + "n" * 300, "nul/a\x00b"]
    for key in [*odd, "x/plain", "plain"]:
        try:
            client.put_object(Bucket=s3_bucket, Key=key, Body=b"odd")
        except client.exceptions.ClientError:
            assert key not in ("both", "both/child", "x/plain", "plain")  # not every server takes every key
    listed = {item["Key"] for item in client.list_objects_v2(Bucket=s3_bucket)["Contents"]}
    with Mount(s3_server.url(s3_bucket), tmp_path / "mnt", tmp_path / "cache", env=s3_server.credentials()) as mount:
        shown = {key.decode() for key in files_of(mount.path)}
        hidden = listed - shown
        assert {"plain", "x/plain", "both/child"} <= shown
        assert hidden, "the server kept no odd key: this test would show nothing"
        poll(lambda: sum(mount.status()["hidden"].values()) == len(hidden), f"{hidden} are counted as hidden")
        assert all(isinstance(reason, str) and reason for reason in mount.status()["hidden"])
        (mount.path / "x" / "new").write_bytes(b"new")
        (mount.path / "both" / "child").unlink()
        (mount.path / "plain").rename(mount.path / "simple")
        mount.wait()
    after = {item["Key"] for item in client.list_objects_v2(Bucket=s3_bucket)["Contents"]}
    client.close()
    assert {key for key in after if not key.startswith(".ckptfs/")} == (
        (listed - {"both/child", "plain"}) | {"x/new", "simple"}
    )
