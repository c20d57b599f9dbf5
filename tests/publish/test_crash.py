"""The daemon ends anywhere in publication: the next life ends where an undisturbed one would."""

from __future__ import annotations

import shutil
import threading
from typing import TYPE_CHECKING

import pytest
import trio
from bucket_world import WatchedStore, World, memory_store, pattern

from ckptfs.namespace.contents import UNPUBLISHED
from ckptfs.namespace.rows import PLACE_NONE
from ckptfs.namespace.tree import RENAME_EXCHANGE
from ckptfs.staging import BLOCK_BYTES
from ckptfs.types import ContentState, Key

if TYPE_CHECKING:
    from pathlib import Path

    from ckptfs.namespace.database import Batch

LARGE = pattern(3 * BLOCK_BYTES + 1, 9)


class PowerCut:
    """Keeps the namespace's file as it was when it was last synced: what a power cut leaves at the least."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._commit = world.namespace.state.database.commit
        self._kept = world.path / "kept"
        self._kept.mkdir()
        self._lock = threading.Lock()
        world.namespace.state.database.commit = self  # type: ignore[method-assign, assignment]

    def __call__(self, batch: Batch) -> None:
        self._commit(batch)
        if batch.durable:
            self.keep()

    def keep(self) -> None:
        with self._lock:
            for name in ("namespace.sqlite", "namespace.sqlite-wal"):
                shutil.copy(self._world.path / name, self._kept)

    def leave(self, path: Path) -> None:
        """Leave the disk as it would be found in ``path``."""
        with self._lock:
            shutil.copytree(self._kept, path)
            shutil.copytree(self._world.path / "contents", path / "contents")


async def work(world: World) -> None:
    """A bit of everything."""
    world.mkdir("d")
    await world.write("d/a", b"A")
    await world.write("d/large", LARGE)
    await world.write("x", b"X")
    await world.write("y", b"Y" * 70_000)
    await world.write("gone", b"gone")
    for path, data in (("foreign", b"theirs"), ("foreign1", b"1"), ("foreign2", b"2")):
        world.adopt(*world.place(path), await world.put_foreign(path, data))
    await world.namespace.state.flush()


async def more_work(world: World) -> dict[str, bytes]:
    """Change all of it; gives what the bucket is to hold in the end."""
    world.rename("d", "e")
    world.rename("x", "y", RENAME_EXCHANGE)
    world.unlink("gone")
    await world.write("e/a", b"A2")
    world.rename("e/large", "large")
    world.rename("foreign", "e/foreign")
    world.rename("foreign1", "foreign2", RENAME_EXCHANGE)
    await world.write("new", b"new")
    await world.namespace.state.flush()
    return {
        "e/a": b"A2",
        "e/foreign": b"theirs",
        "foreign1": b"2",
        "foreign2": b"1",
        "large": LARGE,
        "x": b"Y" * 70_000,
        "y": b"X",
        "new": b"new",
    }


def life_after_kill(path: Path, store: WatchedStore, number: int) -> World:
    """A new life over a copy of what the killed one had on its disk, recovered as far as it matters here."""
    copy = path.with_name(f"{path.name}-{number}")
    shutil.copytree(path, copy)
    world = World(copy, store)
    for (content_id,) in world.namespace.state.database.query("SELECT id FROM content"):
        content = world.contents.get(content_id)
        assert content is not None
        if content.state is ContentState.PUBLISHING:
            world.contents.move(content, ContentState.DURABLE)
        assert content.state not in UNPUBLISHED or content.place != PLACE_NONE
    return world


@pytest.mark.parametrize("effective", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("crash_at", range(1, 36))
def test_pub_1_a_crash_at_any_store_call(crash_at: int, effective: bool, tmp_path: Path) -> None:  # noqa: FBT001
    """The power fails at the n-th change of the bucket, before or after it took effect."""

    async def main() -> None:
        store = memory_store()
        async with World(tmp_path / "cache", store).life() as world:
            await work(world)
            await world.drain()
            await world.reclaim("x", "y", "d/large")
        calls = 0
        crashed = trio.Event()

        async def maybe_crash() -> None:
            nonlocal calls
            calls += 1
            if calls == crash_at:
                crashed.set()
            if calls >= crash_at:
                await trio.sleep_forever()

        async def before(name: str, _key: str) -> None:
            if name not in {"head", "get_range", "list_page"}:
                await maybe_crash()

        if effective:
            store.after = maybe_crash
        else:
            store.before = before
        world = World(tmp_path / "cache", store)
        with trio.CancelScope() as scope:
            async with world.life(publishing=False):
                wanted = await more_work(world)
                await world.namespace.state.sync()
                power = PowerCut(world)
                power.keep()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(world.publisher.run)
                    nursery.start_soon(drained, world, crashed)
                    await crashed.wait()
                    power.leave(tmp_path / "killed")
                    scope.cancel()
        store.after = store.before = None
        second = life_after_kill(tmp_path / "killed", store, 2)
        async with second.life():
            await second.drain()
            assert await second.objects() == wanted
            for path, data in wanted.items():
                assert await second.read(path) == data
            assert second.publisher.conflicts == []
            await second.namespace.state.flush()
            assert second.bucket.uploads() == []
            assert not await store.list_uploads()

    trio.run(main)


async def drained(world: World, crashed: trio.Event) -> None:
    await world.publisher.drained()
    crashed.set()


def test_a_cancelled_publisher_leaves_no_upload(tmp_path: Path) -> None:
    async def main() -> None:
        store = memory_store()

        async def before(name: str, _key: str) -> None:
            if name == "complete_upload":
                await trio.sleep_forever()

        store.before = before
        async with World(tmp_path / "cache", store).life() as world:
            await world.write("f", LARGE)
            await world.until(lambda: store.count("put_part") == 4)
        assert not await store.list_uploads()

    trio.run(main)


def test_a_killed_publisher_leaves_uploads_to_the_next_life(tmp_path: Path) -> None:
    """Those of others are not touched."""

    async def main() -> None:
        store = memory_store()

        async def before(name: str, _key: str) -> None:
            if name in {"complete_upload", "abort_upload"}:
                await trio.sleep_forever()

        store.before = before
        foreign = await store.store.begin_upload(Key("theirs"))
        async with World(tmp_path / "cache", store).life() as world:
            await world.write("f", LARGE)
            await world.until(lambda: store.count("put_part") == 4)
            world.unlink("f")
            await world.namespace.state.flush()
            shutil.copytree(tmp_path / "cache", tmp_path / "killed")
            store.before = None
        left = await store.store.begin_upload(Key("f"))
        second = World(tmp_path / "killed", store)
        second.bucket.upload_begun(left.upload_id, Key("f"))
        async with second.life(publishing=False):
            await second.namespace.state.flush()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(second.publisher.run)
                await second.drain()
                while len(await store.list_uploads()) > 1:  # noqa: ASYNC110 - nothing announces it
                    await trio.sleep(0.01)
                nursery.cancel_scope.cancel()
            assert [upload.upload_id for upload in await store.list_uploads()] == [foreign.upload_id]
            await second.namespace.state.flush()
            assert second.bucket.uploads() == []

    trio.run(main)
