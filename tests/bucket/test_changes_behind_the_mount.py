"""Objects changed behind the mount's back.

Seen after a bounded time, and never destroyed by what the mount publishes.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from typing import TYPE_CHECKING

import pytest
from fs_support import bucket_files, errno_of, files_of, payload, poll, put

from ckptfs.testing.mounts import Mount

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

REFRESH_S = 1.0
SEEN_S = REFRESH_S + 4.0
"""The bound that was asked for, and what a busy machine may add."""


@pytest.fixture
def watching(tmp_path: Path, bucket: Path) -> Iterator[Mount]:
    """A mount that looks into the bucket again after a second, with a directory that it has looked into already."""
    for number in range(20):
        put(bucket, f"d/f{number}", payload(1000, number))
    with Mount(bucket.as_uri(), tmp_path / "mnt", tmp_path / "cache", "--refresh", f"{REFRESH_S:g}s") as mount:
        assert len(files_of(mount.path)) == 20
        yield mount


def test_added_objects_appear(watching: Mount, bucket: Path) -> None:
    """New objects in directories that were listed before, and new directories."""
    put(bucket, "d/new", b"new")
    put(bucket, "fresh/er/f", b"fresh")
    poll(lambda: "new" in os.listdir(watching.path / "d"), "the new object is listed", deadline_s=SEEN_S)
    poll(lambda: "fresh" in os.listdir(watching.path), "the new directory is listed", deadline_s=SEEN_S)
    assert (watching.path / "d" / "new").read_bytes() == b"new"
    assert (watching.path / "fresh" / "er" / "f").read_bytes() == b"fresh"


def test_an_absent_name_that_was_asked_for_appears(watching: Mount, bucket: Path) -> None:
    """The kernel's and the mount's memory that a name is absent is bounded as well."""
    path = watching.path / "d" / "latest"
    assert errno_of(lambda: os.stat(path)) == errno.ENOENT
    put(bucket, "d/latest", b"here now")
    poll(path.exists, "the name is found", deadline_s=SEEN_S)
    assert path.read_bytes() == b"here now"


@pytest.mark.parametrize("size", [0, 1000, 5000])
def test_replaced_objects_show_their_new_bytes(watching: Mount, bucket: Path, size: int) -> None:
    """Bytes and size of the new generation, same size or not; never a mix, warm page cache or not."""
    path = watching.path / "d" / "f3"
    assert path.read_bytes() == payload(1000, 3)
    new = payload(size, 99)
    put(bucket, "d/f3", new)
    end_s = time.monotonic() + SEEN_S
    while (seen := path.read_bytes()) != new:
        assert seen == payload(1000, 3), "neither the old nor the new content"
        assert time.monotonic() < end_s, "the new content is not seen"
    assert path.stat().st_size == size


def test_removed_objects_go(watching: Mount, bucket: Path) -> None:
    """Single objects and whole directories."""
    (bucket / "d" / "f5").unlink()
    poll(lambda: "f5" not in os.listdir(watching.path / "d"), "the removed object is gone", deadline_s=SEEN_S)
    poll(
        lambda: errno_of(lambda: os.stat(watching.path / "d" / "f5")) == errno.ENOENT, "by name too", deadline_s=SEEN_S
    )
    shutil.rmtree(bucket / "d")
    poll(lambda: "d" not in os.listdir(watching.path), "the directory is gone with its objects", deadline_s=SEEN_S)


def _bytes_now(path: Path) -> bytes | None:
    """The bytes; ``None`` while the mount does not know yet that what it showed is not to be had any more."""
    try:
        return path.read_bytes()
    except OSError as error:
        assert error.errno in (errno.EIO, errno.ESTALE)
        return None


def test_an_open_file_sees_one_content(watching: Mount, bucket: Path) -> None:
    """DESIGN §2: a reader with an open file sees one content; what cannot be had any more is an error."""
    put(bucket, "big", payload(8 << 20, 1))
    path = watching.path / "big"
    poll(path.exists, "the object is seen", deadline_s=SEEN_S)
    with path.open("rb", buffering=0) as reader:
        first = reader.read(4096)
        assert first == payload(8 << 20, 1)[:4096]
        put(bucket, "big", payload(8 << 20, 2))
        poll(lambda: _bytes_now(path) == payload(8 << 20, 2), "the new content is seen by name", deadline_s=SEEN_S)
        try:
            rest = reader.read(100_000)
        except OSError as error:
            assert error.errno in (errno.EIO, errno.ESTALE)
        else:
            assert payload(8 << 20, 1).startswith(first + rest)
            assert rest


def test_local_changes_stay_until_they_are_published(watching: Mount, bucket: Path) -> None:
    """A refresh neither takes away what is not published yet, nor revives what was removed here."""
    (watching.path / "d" / "mine").write_bytes(b"mine")
    (watching.path / "d" / "f1").unlink()
    (watching.path / "d" / "f2").rename(watching.path / "d" / "moved")
    (watching.path / "made").mkdir()
    end_s = time.monotonic() + 2 * REFRESH_S
    while time.monotonic() < end_s:
        names = set(os.listdir(watching.path / "d"))
        assert {"mine", "moved"} <= names
        assert not {"f1", "f2"} & names
        assert os.listdir(watching.path / "made") == []
    watching.wait()
    keys = bucket_files(bucket)
    assert keys[b"d/mine"] == b"mine"
    assert keys[b"d/moved"] == payload(1000, 2)
    assert not {b"d/f1", b"d/f2"} & keys.keys()


# --- publishing over such a change ---------------------------------------------------------------------------------


def _assert_both_are_kept(mount: Mount, bucket: Path, key: str, theirs: bytes, ours: bytes) -> None:
    """``key`` holds what the other put, the mount's content lies beside it, status tells, mount and bucket agree."""
    directory, _, name = key.rpartition("/")
    poll(lambda: mount.status()["conflicts"], "the conflict is reported")
    mount.wait()
    keys = bucket_files(bucket)
    assert keys[key.encode()] == theirs
    beside = [k for k in keys if k.startswith(f"{key}.ckptfs-conflict-".encode())]
    assert [keys[k] for k in beside] == [ours]
    assert any(key in str(conflict) for conflict in mount.status()["conflicts"])
    poll(lambda: (mount.path / key).read_bytes() == theirs, "the mount shows the bucket's object", deadline_s=SEEN_S)
    assert (mount.path / os.fsdecode(beside[0])).read_bytes() == ours
    assert sum(n.startswith(name) for n in os.listdir(mount.path / directory)) == 2


@pytest.fixture
def patient(tmp_path: Path, bucket: Path) -> Iterator[Mount]:
    """A mount that believes what it knows of the bucket for an hour, so that only publication can meet a change."""
    put(bucket, "d/shared", b"known to the mount")
    put(bucket, "d/other", b"other")
    with Mount(bucket.as_uri(), tmp_path / "mnt", tmp_path / "cache", "--refresh", "1h") as mount:
        assert len(files_of(mount.path)) == 2
        yield mount


def test_publishing_over_a_changed_object(patient: Mount, bucket: Path) -> None:
    """Conditional write: another writer's newer object stands, the loser is kept beside it and reported."""
    put(bucket, "d/shared", b"changed by another")
    (patient.path / "d" / "shared").write_bytes(b"changed here")
    _assert_both_are_kept(patient, bucket, "d/shared", b"changed by another", b"changed here")


def test_publishing_a_new_file_over_an_object_that_appeared(patient: Mount, bucket: Path) -> None:
    """If-None-Match: a name that was free here, and is not any more in the bucket."""
    put(bucket, "d/fresh", b"put by another")
    (patient.path / "d" / "fresh").write_bytes(b"created here")
    _assert_both_are_kept(patient, bucket, "d/fresh", b"put by another", b"created here")


def test_publishing_a_large_file_over_an_object_that_appeared(patient: Mount, bucket: Path) -> None:
    """The same where the object goes up in parts."""
    put(bucket, "d/large", b"put by another")
    (patient.path / "d" / "large").write_bytes(payload(40 << 20))
    _assert_both_are_kept(patient, bucket, "d/large", b"put by another", payload(40 << 20))


def test_removing_an_object_that_was_changed(patient: Mount, bucket: Path) -> None:
    """A deletion here does not destroy a newer object there."""
    put(bucket, "d/shared", b"changed by another")
    (patient.path / "d" / "shared").unlink()
    patient.wait()
    assert bucket_files(bucket)[b"d/shared"] == b"changed by another"
    assert bucket_files(bucket)[b"d/other"] == b"other"
    poll(lambda: patient.status()["conflicts"], "the conflict is reported")


def test_renaming_over_an_object_that_was_changed(patient: Mount, bucket: Path) -> None:
    """The atomic save of a framework meets the same condition."""
    put(bucket, "d/shared", b"changed by another")
    (patient.path / "d" / ".tmp").write_bytes(b"saved here")
    (patient.path / "d" / ".tmp").rename(patient.path / "d" / "shared")
    _assert_both_are_kept(patient, bucket, "d/shared", b"changed by another", b"saved here")


def test_moving_a_tree_whose_object_was_changed(patient: Mount, bucket: Path) -> None:
    """A rename of a directory copies what the mount knows, and does not delete what another put meanwhile."""
    put(bucket, "d/shared", b"changed by another")
    (patient.path / "d").rename(patient.path / "e")
    patient.wait()
    keys = bucket_files(bucket)
    assert b"changed by another" in keys.values(), "another's newer object is lost"
    assert keys[b"e/other"] == b"other"
    assert b"d/other" not in keys
