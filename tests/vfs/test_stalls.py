"""Nothing that may wait for a disk, a sync or the network stops anything that need not wait for it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import trio
import trio.testing
from rig import running

from ckptfs.types import ROOT_INO

if TYPE_CHECKING:
    from pathlib import Path

    from rig import Rig

DEADLINE_S = 30.0


async def others_go_on(rig: Rig, ino: int) -> None:
    """What needs neither the staging files nor the bucket is answered."""
    with trio.fail_after(DEADLINE_S):
        assert await rig.vfs.names.lookup(ROOT_INO, b"small") is not None
        assert rig.vfs.core.attributes(ino).size == 5  # type: ignore[arg-type]
        assert await rig.load(ino) == b"small"  # type: ignore[arg-type]
        await rig.vfs.names.mkdir(ROOT_INO, b"d", 0o755, 0, 0)
        await rig.vfs.names.rename(ROOT_INO, b"d", ROOT_INO, b"e", 0)
        await rig.vfs.names.rmdir(ROOT_INO, b"e")
        handle = rig.vfs.names.opendir(ROOT_INO)
        assert b"small" in [name for _, name, _ in await rig.vfs.names.readdir(handle, 0)]


def test_a_stalled_disk_stops_only_those_who_write_to_it(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path) as rig:
            small = await rig.save(b"small", b"small")
            handle, _ = await rig.create(b"large")
            rig.disk.stall()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(rig.vfs.io.write, handle, 0, bytes(300_000))
                await trio.testing.wait_all_tasks_blocked()
                assert rig.disk.waiting
                await others_go_on(rig, small)
                rig.disk.release()
            await rig.close(handle)

    trio.run(run)


def test_a_stalled_commit_stops_only_those_who_sync(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path) as rig:
            small = await rig.save(b"small", b"small")
            go, reached = threading.Event(), threading.Event()
            commit = rig.namespace.state.database.commit

            def stalled(batch: object) -> None:
                reached.set()
                assert go.wait(DEADLINE_S)
                commit(batch)  # type: ignore[arg-type]

            rig.namespace.state.database.commit = stalled  # type: ignore[method-assign]
            synced = False

            async def save() -> None:
                nonlocal synced
                await rig.save(b"other", b"other")
                synced = True

            async with trio.open_nursery() as nursery:
                nursery.start_soon(save)
                await trio.to_thread.run_sync(reached.wait, DEADLINE_S)
                await others_go_on(rig, small)
                assert not synced
                go.set()
            assert synced

    trio.run(run)


def test_a_stalled_store_stops_only_those_who_need_what_only_it_knows(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path) as rig:
            small = await rig.save(b"small", b"small")
            await rig.vfs.names.lookup(ROOT_INO, b"small")
            unknown = rig.namespace.tree.adopt(ROOT_INO, b"foreign", 0o040755, 0, 0, 0).ino
            rig.store.stalled = trio.Event()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(rig.vfs.names.lookup, unknown, b"x")
                await trio.testing.wait_all_tasks_blocked()
                await others_go_on(rig, small)
                rig.store.stalled.set()

    trio.run(run)
