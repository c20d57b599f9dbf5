"""Clean bytes stay under their bound; bytes that the bucket does not have are never evicted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio
from bucket_world import World, memory_store, pattern

from ckptfs.cache import CacheLimits
from ckptfs.errors import StoreUnavailableError
from ckptfs.namespace.rows import PLACE_INLINE, PLACE_NONE
from ckptfs.staging import BLOCK_BYTES
from ckptfs.types import ContentState

if TYPE_CHECKING:
    from pathlib import Path


def test_the_oldest_published_bytes_go_first(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path / "cache", memory_store(), cache_bytes=10 * BLOCK_BYTES)
        async with world.life():
            files = {f"f{number}": pattern(BLOCK_BYTES, number) for number in range(30)}
            for path, data in files.items():
                await world.write(path, data)
                await world.drain()
                world.evictor.touch(world.content_of("f0").id)
            await world.until(lambda: world.evictor.total_bytes <= 10 * BLOCK_BYTES)
            assert world.content_of("f0").state is ContentState.PUBLISHED, "it was used all the time"
            assert world.content_of("f29").state is ContentState.PUBLISHED
            assert world.content_of("f1").state is ContentState.RECLAIMED
            await world.until(lambda: not world.staging.path(world.content_of("f1").id).exists())
            for path, data in files.items():
                assert await world.read(path) == data
            await world.until(lambda: world.evictor.total_bytes <= 10 * BLOCK_BYTES)

    trio.run(main)


def test_bytes_that_the_bucket_does_not_have_stay(tmp_path: Path) -> None:
    """alluxio#14807: a tiny cache, a store that is away, and read pressure."""

    async def main() -> None:
        store = memory_store()

        async def before(name: str, key: str) -> None:
            if name in {"put", "begin_upload"} and key.startswith("unsent"):
                raise StoreUnavailableError("away")

        store.before = before
        async with World(tmp_path / "cache", store, cache_bytes=BLOCK_BYTES).life() as world:
            unsent = {f"unsent{number}": pattern(BLOCK_BYTES + 5, number) for number in range(8)}
            for path, data in unsent.items():
                await world.write(path, data)
            for number in range(20):
                await world.write(f"sent{number}", pattern(BLOCK_BYTES, 100 + number))
            await world.until(lambda: world.publisher.pending()["objects"] == 8)
            for _ in range(2):
                for number in range(20):
                    assert await world.read(f"sent{number}") == pattern(BLOCK_BYTES, 100 + number)
            await world.until(lambda: world.evictor.total_bytes <= BLOCK_BYTES)
            for path in unsent:
                assert world.staging.path(world.content_of(path).id).stat().st_size == BLOCK_BYTES + 5
            store.before = None
            await world.drain()
            assert {key: data for key, data in (await world.objects()).items() if key in unsent} == unsent

    trio.run(main)


def test_what_a_handle_reads_stays_and_goes_when_it_is_closed(tmp_path: Path) -> None:
    async def main() -> None:
        async with World(tmp_path / "cache", memory_store(), cache_bytes=1).life() as world:
            await world.write("f", pattern(BLOCK_BYTES), oblige=False)
            content = world.content_of("f").id
            world.used.add(content)
            inode = world.find("f")
            assert inode is not None
            world.contents.oblige(inode)
            await world.drain()
            await trio.sleep(0.1)
            assert world.staging.path(content).exists()
            world.used.discard(content)
            await world.until(lambda: not world.staging.path(content).exists())
            assert world.content_of("f").place == PLACE_NONE

    trio.run(main)


def test_contents_in_the_journal_are_evicted_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with World(tmp_path / "cache", memory_store(), cache_bytes=1000).life() as world:
            for number in range(50):
                await world.write(f"f{number}", b"%d" % number * 50)
            assert world.content_of("f0").place == PLACE_INLINE
            await world.drain()
            await world.until(lambda: world.evictor.total_bytes <= 1000)
            assert world.content_of("f0").data is None
            for number in range(50):
                assert await world.read(f"f{number}") == b"%d" % number * 50

    trio.run(main)


def test_blocks_of_incomplete_contents_count_and_go(tmp_path: Path) -> None:
    async def main() -> None:
        async with World(tmp_path / "cache", memory_store(), cache_bytes=4 * BLOCK_BYTES).life() as world:
            for number in range(12):
                path = f"f{number}"
                world.adopt(*world.place(path), await world.put_foreign(path, pattern(3 * BLOCK_BYTES, number)))
                await world.fetcher.read(world.content_of(path).id, BLOCK_BYTES + 7, 22)
            await world.until(lambda: world.evictor.total_bytes <= 4 * BLOCK_BYTES)
            assert len(world.fetcher._partials) <= 4
            assert not world.staging.path(world.content_of("f0").id).exists()
            assert await world.read("f0") == pattern(3 * BLOCK_BYTES, 0)

    trio.run(main)


def test_a_restart_counts_what_is_there_and_an_index_that_is_too_small_still_finds_all(tmp_path: Path) -> None:
    async def main() -> None:
        store = memory_store()
        async with World(tmp_path / "cache", store).life() as world:
            for number in range(300):
                await world.write(f"f{number}", b"x" * 100)
            await world.drain()
            await world.until(lambda: world.evictor.total_bytes == 30_000)
        world = World(tmp_path / "cache", store)
        world.evictor._limits = CacheLimits(2_000, index_count=10, retry_s=0.01)
        async with world.life():
            await world.until(lambda: 0 < world.evictor.total_bytes <= 2_000)
            await world.namespace.state.flush()
            clean = world.contents.clean(world.content_of("f0").id, 1000)
            assert sum(size for _, size in clean) <= 2_000
            assert await world.read("f0") == b"x" * 100

    trio.run(main)


def test_an_eviction_leaves_nothing_behind_that_a_crash_could_trust(tmp_path: Path) -> None:
    """The row says that the bytes are gone before they are: a kill between the two leaves a file, never a promise."""

    async def main() -> None:
        async with World(tmp_path / "cache", memory_store()).life() as world:
            await world.write("f", pattern(BLOCK_BYTES))
            await world.drain()
            number = world.content_of("f").id
            seen: list[int] = []
            real = world.staging.disk.unlink

            async def unlink(path: Path) -> None:
                rows = world.namespace.state.database.query("SELECT place FROM content WHERE id = ?", (number,))
                seen.append(rows[0][0])
                await real(path)

            world.staging.disk.unlink = unlink  # type: ignore[method-assign]
            await world.reclaim("f")
            assert seen == [PLACE_NONE]

    trio.run(main)
