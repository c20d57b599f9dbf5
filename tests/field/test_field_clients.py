"""FIELD.md §3, the reports of libraries that met a filesystem which could not do what they asked."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import shutil
import stat
import struct
import threading
import zlib
from typing import TYPE_CHECKING

import filelock
import numpy as np
import pytest
from fs_support import MIB, SIZES, Child, as_user, errno_of, payload, poll
from safetensors.numpy import load_file, save_file

if TYPE_CHECKING:
    from pathlib import Path

    from ckptfs.testing.mounts import Mount


def _tensors(seed: int, count: int = 4) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {f"layer.{n}": random.standard_normal((100, n * 37 + 1)).astype(np.float32) for n in range(count)}


def _equal(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> bool:
    return left.keys() == right.keys() and all(np.array_equal(left[name], right[name]) for name in left)


def test_safetensors_saves_and_loads(here: Path) -> None:
    """safetensors#792, #842: ``save_file`` onto the mount, and again over the same name; nothing is left beside it."""
    for seed in range(3):
        save_file(_tensors(seed), here / "model.safetensors")
        assert _equal(load_file(here / "model.safetensors"), _tensors(seed))
    assert os.listdir(here) == ["model.safetensors"]


def test_safetensors_saves_over_a_file_that_a_reader_has_mapped(here: Path) -> None:
    """safetensors#792: the map keeps the old tensors, whole; who opens afterwards gets the new ones."""
    path = here / "model.safetensors"
    save_file(_tensors(1), path)
    old = path.read_bytes()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as view:
        for seed in (2, 3):
            save_file(_tensors(seed), path)
        assert view[:] == old
    assert _equal(load_file(path), _tensors(3))


@pytest.mark.parametrize("size", SIZES)
def test_the_sequence_of_safetensors(here: Path, size: int) -> None:
    """safetensors ≥ 0.8: O_EXCL, 0600, ftruncate to the full size, write, chmod, rename while open, close."""
    target = here / "model"
    target.write_bytes(b"older")
    fd = os.open(here / ".tmp", os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    os.ftruncate(fd, size)
    os.pwrite(fd, payload(size), 0)
    os.fchmod(fd, 0o644)
    os.rename(here / ".tmp", target)
    os.close(fd)
    assert target.read_bytes() == payload(size)
    assert stat.S_IMODE(target.stat().st_mode) == 0o644


@pytest.mark.parametrize("size", SIZES)
def test_the_fallback_of_a_rename_across_filesystems(here: Path, tmp_path: Path, size: int) -> None:
    """Lightning#20270: saved elsewhere, rename gives EXDEV, the target is truncated and filled by sendfile."""
    source, target = tmp_path / "local.ckpt", here / "model.ckpt"
    source.write_bytes(payload(size))
    target.write_bytes(b"the old checkpoint" * 1000)
    assert errno_of(lambda: os.rename(source, target)) == errno.EXDEV
    with target.open("rb", buffering=0) as reader:
        shutil.move(source, target)
        assert reader.read() == b"the old checkpoint" * 1000
    assert target.read_bytes() == payload(size)
    assert not source.exists()


def test_a_failing_save_says_so(here: Path) -> None:
    """Lightning#21800: a save into a directory that may not be written fails, instead of looking done."""
    directory = here / "checkpoints"
    directory.mkdir()
    os.chown(directory, 1000, 1000)
    directory.chmod(0o555)

    def save() -> int:
        return errno_of(lambda: shutil.copyfile("/proc/self/status", "checkpoints/last.ckpt"))

    assert as_user(save, cwd=here, uid=1000) == errno.EACCES
    assert os.listdir(directory) == []


def test_copy2_both_ways(here: Path, tmp_path: Path) -> None:
    """azure-storage-fuse#328: ``shutil.copy2`` asks for xattrs, times and modes, in both directions."""
    source = tmp_path / "source"
    source.write_bytes(payload(5000))
    source.chmod(0o741)
    os.utime(source, ns=(10**18 + 1, 10**18 + 123_456_789))
    os.setxattr(source, "user.note", b"\x00\x01")
    for target in (here / "onto", tmp_path / "back"):
        shutil.copy2(source, target)
        assert target.read_bytes() == payload(5000)
        assert stat.S_IMODE(target.stat().st_mode) == 0o741
        assert target.stat().st_mtime_ns == 10**18 + 123_456_789
        assert os.getxattr(target, "user.note") == b"\x00\x01"
        source = target
    shutil.copytree(here, here / "tree", ignore=shutil.ignore_patterns("tree"))
    assert (here / "tree" / "onto").read_bytes() == payload(5000)


def test_listxattr(here: Path) -> None:
    """azure-storage-fuse#328: listxattr works on every kind of file, empty where there is nothing of the user's."""
    (here / "f").write_bytes(b"")
    (here / "d").mkdir()
    (here / "l").symlink_to("f")
    for name in ("f", "d", "l"):
        names = os.listxattr(here / name, follow_symlinks=False)
        assert not [name for name in names if name.startswith("user.") and not name.startswith("user.ckptfs.")]
    many = {f"user.attribute-{number:03d}": payload(number, number) for number in range(40)}
    for name, value in many.items():
        os.setxattr(here / "f", name, value)
    assert many.keys() <= set(os.listxattr(here / "f"))
    assert {name: os.getxattr(here / "f", name) for name in many} == many
    assert errno_of(lambda: os.setxattr(here / "f", "user.attribute-000", b"", os.XATTR_CREATE)) == errno.EEXIST
    assert errno_of(lambda: os.setxattr(here / "f", "user.none", b"", os.XATTR_REPLACE)) == errno.ENODATA
    os.removexattr(here / "f", "user.attribute-000")
    assert errno_of(lambda: os.getxattr(here / "f", "user.attribute-000")) == errno.ENODATA


# --- locks ---------------------------------------------------------------------------------------------------------

_F_OFD_SETLK, _F_OFD_SETLKW = 37, 38


def _flock(fd: int, *, wait: bool) -> None:
    fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


def _setlk(fd: int, *, wait: bool) -> None:
    fcntl.lockf(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


def _ofd(fd: int, *, wait: bool) -> None:
    whole_file = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    fcntl.fcntl(fd, _F_OFD_SETLKW if wait else _F_OFD_SETLK, whole_file)


LOCKS = {"flock": _flock, "SETLKW": _setlk, "OFD_SETLKW": _ofd}


@pytest.mark.parametrize("kind", LOCKS)
def test_locks_exclude(here: Path, kind: str) -> None:
    """huggingface_hub#2399: a lock that one process holds, another does not get; it does when the holder is gone."""
    lock = LOCKS[kind]
    (here / "lock").touch()

    def hold() -> None:
        fd = os.open("lock", os.O_RDWR)
        lock(fd, wait=True)
        open("held", "wb").close()
        while not os.path.exists("release"):
            pass
        os._exit(0)  # without unlocking: the end of the process does it

    holder = Child(hold, cwd=here)
    poll((here / "held").exists, "the child holds the lock")
    fd = os.open(here / "lock", os.O_RDWR)
    try:
        assert errno_of(lambda: lock(fd, wait=False)) in (errno.EAGAIN, errno.EACCES)
        (here / "release").touch()
        poll(lambda: errno_of(lambda: lock(fd, wait=False)) == 0, "the lock is free")
    finally:
        os.close(fd)
    with pytest.raises(AssertionError, match="without a report"):
        holder.result()


@pytest.mark.parametrize("kind", LOCKS)
def test_locks_of_many_processes(here: Path, kind: str) -> None:
    """juicefs#6770: 8 processes × flock, SETLKW, OFD_SETLKW, with signals: no false EDEADLK, no update lost."""
    lock = LOCKS[kind]
    (here / "counter").write_bytes(b"0")

    def count() -> None:
        import signal

        signal.signal(signal.SIGALRM, lambda *_: None)
        signal.setitimer(signal.ITIMER_REAL, 0.003, 0.003)
        for _ in range(25):
            fd = os.open("counter", os.O_RDWR)
            lock(fd, wait=True)
            value = int(os.pread(fd, 20, 0))
            os.pwrite(fd, str(value + 1).encode(), 0)
            os.close(fd)

    for child in [Child(count, cwd=here) for _ in range(8)]:
        child.result()
    assert (here / "counter").read_bytes() == b"200"


def test_filelock(here: Path) -> None:
    """huggingface_hub#2399: the library that the hub, datasets and transformers lock with."""

    def attempt() -> str:
        try:
            with filelock.FileLock("hub.lock", timeout=0.2):
                return "locked"
        except filelock.Timeout:
            return "timed out"

    with filelock.FileLock(here / "hub.lock"):
        assert Child(attempt, cwd=here).result() == "timed out"
    assert Child(attempt, cwd=here).result() == "locked"


# --- maps of files that are not in the cache -----------------------------------------------------------------------


def _touch_all(views: list[memoryview], first: int, results: list[list[int]]) -> None:
    """Checksums of all the maps, from the ``first`` on; crc32 of a large piece faults with the GIL given up."""
    sums = [0] * len(views)
    for position in range(0, len(views[0]), 64 * 1024):
        for step in range(len(views)):
            which = (first + step) % len(views)
            sums[which] = zlib.crc32(views[which][position : position + 64 * 1024], sums[which])
    results.append(sums)


def test_page_faults_of_many_threads_never_deadlock(mount: Mount) -> None:
    """transformers PR#45547: N threads touch N maps of uncached files, beside reads and writes of the same mount."""
    count, size = 8, 4 * MIB
    for number in range(count):
        (mount.path / f"shard{number}").write_bytes(payload(size, number))
    mount.wipe_cache_and_remount()
    files = [(mount.path / f"shard{number}").open("rb") for number in range(count)]
    maps = [mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) for file in files]
    views = [memoryview(view) for view in maps]
    results: list[list[int]] = []
    threads = [threading.Thread(target=_touch_all, args=(views, t, results), daemon=True) for t in range(count)]
    for thread in threads:
        thread.start()
    (mount.path / "written meanwhile").write_bytes(payload(size, 77))
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive(), "a page fault did not return"
    assert results == [[zlib.crc32(payload(size, number)) for number in range(count)]] * count
    for view in [*views, *maps]:
        view.release() if isinstance(view, memoryview) else view.close()
    for file in files:
        file.close()
    assert (mount.path / "written meanwhile").read_bytes() == payload(size, 77)
