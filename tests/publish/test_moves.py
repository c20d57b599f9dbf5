"""Renames, exchanges, links and trees: the bucket follows by copies, and never loses what it alone has, at any step."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING

import pytest
import trio
from bucket_world import World, memory_store, pattern

from ckptfs.errors import StoreRejectedError
from ckptfs.namespace.rows import PLACE_NONE
from ckptfs.namespace.tree import RENAME_EXCHANGE
from ckptfs.staging import BLOCK_BYTES
from ckptfs.types import ContentId, ContentState, Ino, Key

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ckptfs.publish import Publisher


def contents(world: World) -> Iterator[tuple[str, ContentId]]:
    """Every file and the content that it is committed to."""
    stack = [(Ino(1), "")]
    while stack:
        ino, prefix = stack.pop()
        after = 0
        while entries := world.tree.readdir(ino, after, 100):
            for _, name, inode in entries:
                if inode.is_dir:
                    stack.append((inode.ino, f"{prefix}{name.decode()}/"))
                else:
                    yield prefix + name.decode(), inode.content
            after = entries[-1][0]


class Guard:
    """After every change of the bucket: each known content is here or in the bucket; what the bucket had it keeps."""

    def __init__(self, world: World, *, keeps: bool = True) -> None:
        self.world = world
        self.keeps = keeps
        self.bytes: dict[ContentId, bytes] = {}
        self.had: set[bytes] = set()
        self.checks = 0
        world.store.after = self.check

    async def watch(self) -> None:
        for path, content in contents(self.world):
            self.bytes[content] = await self.world.read(path)

    async def check(self) -> None:
        held = set((await self.world.objects()).values())
        wanted = {content for _, content in contents(self.world)} | self.world.used
        for content_id in wanted & self.bytes.keys():
            content = self.world.contents.get(content_id)
            assert content is not None
            data = self.bytes[content_id]
            assert content.place != PLACE_NONE or data in held, f"content {content_id} is lost"
            if self.keeps:
                assert data not in self.had or data in held, f"the bucket lost content {content_id}"
        self.had |= held
        self.checks += 1


async def published(world: World, **files: bytes) -> Guard:
    for path, data in files.items():
        await world.write(path, data)
    await world.drain()
    guard = Guard(world)
    await guard.watch()
    await guard.check()
    world.store.calls.clear()
    return guard


LARGE = pattern(2 * BLOCK_BYTES + 5, 7)


@pytest.mark.parametrize("reclaimed", [False, True])
def test_a_renamed_file_is_copied_and_then_deleted(reclaimed: bool, tmp_path: Path) -> None:  # noqa: FBT001
    async def main() -> None:
        async with World(tmp_path / "cache", memory_store()).life() as world:
            await published(world, a=LARGE)
            if reclaimed:
                await world.reclaim("a")
            world.rename("a", "b")
            await world.drain()
            assert await world.objects() == {"b": LARGE}
            assert world.store.count("copy") == 1
            assert world.store.count("begin_upload") == world.store.count("put") == 0
            assert world.content_of("b").key == "b"
            assert await world.read("b") == LARGE

    trio.run(main)


@pytest.mark.parametrize("reclaimed", [False, True])
def test_chains_and_new_files_in_the_old_places(reclaimed: bool, tmp_path: Path) -> None:  # noqa: FBT001
    async def main() -> None:
        async with World(tmp_path / "cache", memory_store()).life() as world:
            guard = await published(world, a=b"A", b=b"B", c=b"C", d=b"D")
            if reclaimed:
                await world.reclaim("a", "b", "c", "d")
            world.rename("d", "e")
            world.rename("c", "d")
            world.rename("b", "c")
            world.rename("a", "b")
            await world.write("a", b"new")
            await world.drain()
            assert await world.objects() == {"a": b"new", "b": b"A", "c": b"B", "d": b"C", "e": b"D"}
            assert world.store.count("copy") == 4
            assert guard.checks >= 6

    trio.run(main)


def test_rename_over_a_published_file(tmp_path: Path) -> None:
    async def main() -> None:
        async with World(tmp_path / "cache", memory_store()).life() as world:
            await published(world, latest=b"old")
            await world.write("tmp", b"new")
            world.rename("tmp", "latest")
            await world.drain()
            assert await world.objects() == {"latest": b"new"}

    trio.run(main)


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("reclaimed", [False, True])
def test_rings_of_renames(count: int, reclaimed: bool, tmp_path: Path) -> None:  # noqa: FBT001
    """An exchange has no order in which copies alone could do it: one content is brought here first."""

    async def main() -> None:
        async with World(tmp_path / "cache", memory_store()).life() as world:
            names = [f"f{number}" for number in range(count)]
            files = {name: pattern(BLOCK_BYTES + 1, number) for number, name in enumerate(names)}
            guard = await published(world, **files)
            guard.keeps = False
            if reclaimed:
                await world.reclaim(*names)
            for left, right in itertools.pairwise(names):
                world.rename(left, right, RENAME_EXCHANGE)
            await world.drain()
            turned = dict(zip(names, [*(files[name] for name in names[1:]), files[names[0]]], strict=True))
            assert await world.objects() == turned
            for name in names:
                assert await world.read(name) == turned[name]

    trio.run(main)


def test_an_exchange_undone_while_it_is_under_way(tmp_path: Path) -> None:
    async def main() -> None:
        async with World(tmp_path / "cache", memory_store()).life() as world:
            guard = await published(world, a=b"A", b=b"B")
            guard.keeps = False
            await world.reclaim("a", "b")
            for _ in range(7):
                world.rename("a", "b", RENAME_EXCHANGE)
                await trio.sleep(0.002)
            world.rename("a", "b", RENAME_EXCHANGE)
            await world.drain()
            assert await world.objects() == {"a": b"A", "b": b"B"}

    trio.run(main)


def test_hard_links_share_a_content_and_each_name_is_an_object(tmp_path: Path) -> None:
    async def main() -> None:
        async with World(tmp_path / "cache", memory_store()).life() as world:
            await world.write("a", LARGE, oblige=False)
            world.link("a", "b")
            inode = world.find("a")
            assert inode is not None
            world.contents.oblige(inode)
            await world.drain()
            assert await world.objects() == {"a": LARGE, "b": LARGE}
            assert world.store.count("begin_upload") == 1, "the second name is a copy"
            guard = Guard(world)
            await guard.watch()
            await world.reclaim("a")
            world.unlink("a")
            world.rename("b", "c")
            await world.drain()
            assert await world.objects() == {"c": LARGE}
            assert await world.read("c") == LARGE

    trio.run(main)


def test_a_heir_that_cannot_be_written_does_not_lose_its_bytes(tmp_path: Path) -> None:
    async def main() -> None:
        store = memory_store()

        async def before(name: str, key: str) -> None:
            if name in {"put", "copy"} and (key == "refused" or (name == "copy" and world.find("refused"))):
                raise StoreRejectedError("no such key")

        async with World(tmp_path / "cache", store).life() as world:
            guard = await published(world, a=b"A", b=b"B")
            guard.keeps = False
            store.before = before
            await world.reclaim("a", "b")
            world.rename("a", "refused")
            await world.write("a", b"new")
            world.rename("b", "refused2")
            await world.publisher.wait([Key("a")])
            assert (await world.objects())["a"] == b"new"
            assert await world.read("refused") == b"A"

    trio.run(main)


def test_unlinked_but_open_stays_readable(tmp_path: Path) -> None:
    async def main() -> None:
        async with World(tmp_path / "cache", memory_store()).life() as world:
            guard = await published(world, a=LARGE, b=b"B")
            guard.keeps = False
            await world.reclaim("a", "b")
            opened = world.content_of("a").id
            world.used.add(opened)
            world.unlink("a")
            world.rename("b", "a")
            await world.drain()
            assert await world.objects() == {"a": b"B"}
            assert await world.fetcher.read(opened, 0, len(LARGE)) == LARGE

    trio.run(main)


def test_clean_bytes_of_an_overwritten_object_are_not_evicted(tmp_path: Path) -> None:
    """DUR-5: between the overwriting of an object and the copy of its content, the cache has the only copy."""

    async def main() -> None:
        store = memory_store()
        async with World(tmp_path / "cache", store, cache_bytes=1).life() as world:
            files = {"a": pattern(BLOCK_BYTES, 1), "b": pattern(BLOCK_BYTES, 2)}
            guard = await published(world, **files)
            guard.keeps = False
            await world.until(lambda: world.content_of("a").state is ContentState.RECLAIMED)

            async def before(_name: str, _key: str) -> None:
                await trio.sleep(0.03)

            store.before = before
            world.rename("a", "b", RENAME_EXCHANGE)
            await world.drain()
            assert await world.objects() == {"a": files["b"], "b": files["a"]}

    trio.run(main)


# --- trees


def test_a_tree_of_a_thousand_files_moves_by_copies(tmp_path: Path) -> None:
    async def main() -> None:
        async with World(tmp_path / "cache", memory_store()).life() as world:
            world.mkdir("old")
            for directory in range(10):
                world.mkdir(f"old/{directory}")
                for number in range(100):
                    await world.write(f"old/{directory}/{number}", b"%d %d" % (directory, number))
            await world.drain()
            world.store.calls.clear()
            began_s = time.monotonic()
            world.rename("old", "new")
            assert time.monotonic() - began_s < 0.05
            await world.drain()
            assert await world.objects() == {f"new/{d}/{n}": b"%d %d" % (d, n) for d in range(10) for n in range(100)}
            assert world.store.count("copy") == world.store.count("delete") == 1000
            assert world.store.count("put") == 0

    trio.run(main)


def test_a_tree_that_moves_on_while_it_is_published_and_moved(tmp_path: Path) -> None:
    async def main() -> None:
        async with World(tmp_path / "cache", memory_store()).life() as world:
            world.mkdir("d0")
            for number in range(50):
                await world.write(f"d0/{number}", b"%d" % number)
            for step in range(12):
                world.rename(f"d{step}", f"d{step + 1}")
                if step % 3 == 0:
                    world.mkdir(f"d{step}")
                    await world.write(f"d{step}/again", b"again %d" % step)
                    await trio.sleep(0.01)
            await world.drain()
            wanted = {f"d12/{n}": b"%d" % n for n in range(50)}
            wanted |= {f"d{step}/again": b"again %d" % step for step in (0, 3, 6, 9)}
            assert await world.objects() == wanted

    trio.run(main)


def test_exchanged_directories(tmp_path: Path) -> None:
    async def main() -> None:
        async with World(tmp_path / "cache", memory_store()).life() as world:
            for directory in ("x", "y"):
                world.mkdir(directory)
                for number in range(10):
                    await world.write(f"{directory}/{number}", f"{directory}{number}".encode())
            await world.write("x/only", b"only")
            await world.drain()
            guard = Guard(world, keeps=False)
            await guard.watch()
            await world.reclaim(*(path for path, _ in contents(world)))
            world.rename("x", "y", RENAME_EXCHANGE)
            await world.drain()
            wanted = {f"{a}/{n}": f"{b}{n}".encode() for a, b in (("x", "y"), ("y", "x")) for n in range(10)}
            assert await world.objects() == wanted | {"y/only": b"only"}

    trio.run(main)


def test_the_marker_of_an_empty_directory_moves_and_goes(tmp_path: Path) -> None:
    async def main() -> None:
        async with World(tmp_path / "cache", memory_store()).life() as world:
            world.mkdir("a")
            world.mkdir("a/b")
            for key in ("a/", "a/b/"):
                world.bucket.holds(Key(key), await world.put_foreign(key, b""), ContentId(0))
            world.rename("a", "c")
            await world.drain()
            assert await world.objects() == {"c/": b"", "c/b/": b""}
            world.tree.rmdir(*world.place("c/b"))
            await world.drain()
            assert await world.objects() == {"c/": b""}

    trio.run(main)


def test_waiting_for_a_directory_waits_for_its_move(tmp_path: Path) -> None:
    async def main() -> None:
        store = memory_store()
        gate = trio.Event()
        async with World(tmp_path / "cache", store).life() as world:
            world.mkdir("a")
            await world.write("a/f", b"f")
            await world.drain()

            async def before(name: str, _key: str) -> None:
                if name == "copy":
                    await gate.wait()

            store.before = before
            world.rename("a", "b")
            assert await pends(world.publisher, "b/")
            assert await pends(world.publisher, "b/f")
            gate.set()
            await world.publisher.wait([Key("b/f"), Key("b/")])
            assert await world.is_there("b/f")

    trio.run(main)


async def pends(publisher: Publisher, key: str) -> bool:
    with trio.move_on_after(0.05) as scope:
        await publisher.wait([Key(key)])
    return scope.cancelled_caught
