"""RES-1: bytes are admitted before they are taken; the journal always has room to say that others went."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest
import trio
from rig import running

from ckptfs.disk.base import DiskSpace
from ckptfs.staging import SpaceGuard
from ckptfs.staging.space import (
    RESERVE_FILE_BYTES,
    make_reserve_file,
    release_reserve_file,
    reserve_bytes,
)

if TYPE_CHECKING:
    from pathlib import Path

GIB = 1 << 30


class SmallDisk:
    """A disk that says how much is free."""

    def __init__(self, free_bytes: int) -> None:
        self.free_bytes = free_bytes
        self.looks = 0

    async def space(self, _path: Path) -> DiskSpace:
        await trio.lowlevel.checkpoint()
        self.looks += 1
        return DiskSpace(GIB, self.free_bytes, 1000, 1000)


@pytest.mark.parametrize("chunk", [4096, 1 << 20, 100 << 20])
def test_admission_never_takes_the_reserve(tmp_path: Path, chunk: int) -> None:
    disk = SmallDisk(200 << 20)
    guard = SpaceGuard(disk, tmp_path)  # type: ignore[arg-type]

    async def run() -> None:
        while guard.try_admit(chunk) or await guard.admit(chunk):
            disk.free_bytes -= chunk
        assert reserve_bytes(GIB) <= disk.free_bytes < reserve_bytes(GIB) + chunk

    trio.run(run)
    assert disk.looks < 30, "the disk is asked now and then, not for each write"


def test_a_writer_on_a_full_disk_waits_while_there_is_hope_and_goes_on_when_room_comes(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path) as rig:
            space = rig.disk.space
            full = True

            async def limited(path: Path) -> DiskSpace:
                found = await space(path)
                return DiskSpace(found.total_bytes, 0, 0, 0) if full else found

            rig.disk.space = limited  # type: ignore[method-assign]
            asked: list[int] = []

            def make_room(byte_count: int) -> bool:
                nonlocal full
                asked.append(byte_count)
                full = len(asked) < 3
                return True

            rig.vfs.on_full(make_room)
            data = os.urandom(300_000)
            ino = await rig.save(b"f", data)
            assert asked == [300_000] * 3
            assert await rig.load(ino) == data

    trio.run(run)


def test_without_hope_a_writer_on_a_full_disk_gets_enospc_at_once_and_small_files_still_go(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path) as rig:
            space = rig.disk.space

            async def full(path: Path) -> DiskSpace:
                found = await space(path)
                return DiskSpace(found.total_bytes, 0, 0, 0)

            rig.disk.space = full  # type: ignore[method-assign]
            handle, _ = await rig.create(b"large")
            with pytest.raises(OSError, match="no room") as raised:
                await rig.vfs.io.write(handle, 0, bytes(300_000))
            assert raised.value.errno == errno.ENOSPC
            with pytest.raises(OSError, match="no room"):
                await rig.close(handle)
            assert await rig.load(await rig.save(b"small", b"small")) == b"small"

    trio.run(run)


def test_the_reserve_file_is_made_once_and_given_up_only_on_a_full_disk(tmp_path: Path) -> None:
    path = tmp_path / "reserve"
    make_reserve_file(path)
    assert path.stat().st_size == RESERVE_FILE_BYTES
    assert path.stat().st_blocks * 512 >= RESERVE_FILE_BYTES, "it really takes the room"
    assert not release_reserve_file(path)
    assert path.exists()
