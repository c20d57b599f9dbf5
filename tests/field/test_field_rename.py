"""FIELD.md §3, the reports about names: renames, links, and directories that went before their upload."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from typing import TYPE_CHECKING

import pytest
from fs_support import NAMES, SIZES, Child, bucket_files, errno_of, files_of, payload

if TYPE_CHECKING:
    from pathlib import Path

    from ckptfs.testing.mounts import Mount


def test_temp_renamed_over_a_fresh_empty_target(mount: Mount, bucket: Path) -> None:
    """rclone#4293: write t; create and close an empty f; rename t to f at once; kill; remount: f has t's bytes."""
    expected = {}
    for number, size in enumerate(SIZES):
        temp, target = mount.path / f"t{number}", mount.path / f"f{number}"
        temp.write_bytes(payload(size, number))
        target.write_bytes(b"")
        temp.rename(target)
        expected[f"f{number}".encode()] = payload(size, number)
    mount.kill()
    mount.remount()
    assert files_of(mount.path) == expected
    mount.wait()
    assert bucket_files(bucket) == expected


def test_content_after_rename_with_a_cache(mount: Mount, bucket: Path) -> None:
    """s3fs-fuse#1453: write a and b; rename a over b; the same bytes warm, cold and from the bucket, for every size."""
    expected = {}
    for number, size in enumerate(SIZES):
        first, second = mount.path / f"a{number}", mount.path / f"b{number}"
        first.write_bytes(payload(size, 1))
        second.write_bytes(payload(size + 3, 2))
        if number % 2:
            mount.wait()  # both are published before the rename: it has to happen in the bucket too
        assert second.read_bytes() == payload(size + 3, 2)
        first.rename(second)
        assert second.read_bytes() == payload(size, 1)
        expected[f"b{number}".encode()] = payload(size, 1)
    assert files_of(mount.path) == expected
    mount.wait()
    assert bucket_files(bucket) == expected
    mount.umount()
    mount.remount()
    assert files_of(mount.path) == expected
    mount.wipe_cache_and_remount()
    assert files_of(mount.path) == expected


@pytest.mark.parametrize("size", [0, 1, 100_000])
@pytest.mark.parametrize("name", [b"f", *NAMES])
def test_rename_over_a_name_that_was_linked_again(here: Path, name: bytes, size: int) -> None:
    """juicefs#7502: create f1; link f1 l; unlink l; create f2; link f1 l; rename f2 l."""
    root = os.fsencode(here)
    first, second, link = (os.path.join(root, part) for part in (b"1", b"2", name))
    for path, seed in ((first, 1), (second, 2)):
        with open(path, "wb") as file:
            file.write(payload(size, seed))
        if path == first:
            os.link(first, link)
            os.unlink(link)
    os.link(first, link)
    os.rename(second, link)
    with open(link, "rb") as file:
        assert file.read() == payload(size, 2)
    assert os.stat(first).st_nlink == os.stat(link).st_nlink == 1
    assert sorted(os.listdir(root)) == sorted([b"1", name])


@pytest.mark.parametrize("size", SIZES)
def test_an_open_file_is_renamed(here: Path, size: int) -> None:
    """gcsfuse#2570: a NamedTemporaryFile is written, renamed while open, closed."""
    with tempfile.NamedTemporaryFile(dir=here, delete=False) as file:
        file.write(payload(size))
        os.rename(file.name, here / "final")
        file.write(b"after")
    assert (here / "final").read_bytes() == payload(size) + b"after"
    assert os.listdir(here) == ["final"]


def test_a_directory_renamed_and_removed_before_its_upload(mount: Mount, bucket: Path) -> None:
    """rclone#6809: write d/f, rename d to e, remove e; what was never to be there is not in the bucket."""
    for number in range(20):
        directory, renamed = mount.path / f"d{number}", mount.path / f"e{number}"
        (directory / "sub").mkdir(parents=True)
        for size in (0, 1, 300_000):
            (directory / "sub" / f"f{size}").write_bytes(payload(size))
        directory.rename(renamed)
        shutil.rmtree(renamed)
    (mount.path / "last").write_bytes(b"last")
    mount.wait()
    assert bucket_files(bucket) == {b"last": b"last"}
    mount.wipe_cache_and_remount()
    assert os.listdir(mount.path) == ["last"]


def test_every_rank_renames_the_same_directory(here: Path) -> None:
    """transformers#27925: 8 processes rename src to dst: one succeeds, the rest get a clean error."""
    for round_number in range(10):
        source, target = here / f"tmp-checkpoint-{round_number}", here / f"checkpoint-{round_number}"
        source.mkdir()
        (source / "model").write_bytes(payload(50_000, round_number))

        def rename(source: Path = source, target: Path = target) -> int:
            return errno_of(lambda: os.rename(source, target))

        ranks = [Child(rename, cwd=here) for _ in range(8)]
        results = sorted(int(str(rank.result())) for rank in ranks)
        assert results == [0] + [errno.ENOENT] * 7
        assert files_of(target) == {b"model": payload(50_000, round_number)}
        assert not source.exists()


def test_every_rank_replaces_the_same_file(here: Path) -> None:
    """The same of files: 8 processes write a temporary file of their own and rename it over one name."""

    def replace(rank: int) -> None:
        for number in range(20):
            with open(f"temp-{rank}", "wb") as file:
                file.write(payload(10_000, rank * 100 + number))
            os.rename(f"temp-{rank}", "latest")

    for child in [Child(lambda r=rank: replace(r), cwd=here) for rank in range(8)]:
        child.result()
    assert os.listdir(here) == ["latest"]
    assert (here / "latest").read_bytes() in {payload(10_000, rank * 100 + 19) for rank in range(8)}


@pytest.mark.parametrize("where", ["beside", "in another directory"])
def test_renaming_a_link_over_its_twin_changes_nothing(here: Path, where: str) -> None:
    """ZeroFS PR#278: ``link a b; rename a b`` is no operation: both names stay, two links."""
    (here / "d").mkdir()
    first, second = here / "a", here / "b" if where == "beside" else here / "d" / "b"
    first.write_bytes(b"one file")
    os.link(first, second)
    os.rename(first, second)
    assert first.stat().st_nlink == second.stat().st_nlink == 2
    assert first.samefile(second)
    first.unlink()
    assert second.stat().st_nlink == 1
    assert second.read_bytes() == b"one file"
