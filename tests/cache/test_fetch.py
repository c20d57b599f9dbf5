"""Bytes come back from the bucket as they were sealed, each fetched once, or not at all."""

from __future__ import annotations

import errno
import random
from typing import TYPE_CHECKING

import pytest
import trio
from bucket_world import World, memory_store, pattern

from ckptfs.cache import FetchLimits
from ckptfs.errors import IntegrityError, StoreUnavailableError
from ckptfs.namespace.rows import PLACE_FILE, PLACE_NONE
from ckptfs.staging import BLOCK_BYTES, digest_bytes
from ckptfs.types import ContentState, Key

if TYPE_CHECKING:
    from pathlib import Path

SIZES = [1, 65_537, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 9 * BLOCK_BYTES + 3]


async def foreign(world: World, path: str, data: bytes) -> None:
    """A file that another tool put: no digests are known."""
    world.adopt(*world.place(path), await world.put_foreign(path, data))


@pytest.mark.parametrize("size", SIZES)
def test_every_size_reads_back_at_any_place(size: int, tmp_path: Path) -> None:
    async def main() -> None:
        chance = random.Random(size)
        async with World(tmp_path / "cache", memory_store()).life() as world:
            data = pattern(size, size)
            await foreign(world, "theirs", data)
            await world.write("ours", data)
            await world.drain()
            await world.reclaim("ours")
            for path in ("theirs", "ours"):
                content = world.content_of(path).id
                for _ in range(40):
                    offset = chance.randrange(size)
                    length = min(chance.choice([1, 100, 128 * 1024, 3 * BLOCK_BYTES]), size - offset)
                    assert await world.fetcher.read(content, offset, length) == data[offset : offset + length]
                assert await world.read(path) == data

    trio.run(main)


def test_a_complete_content_is_clean_and_survives_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        store = memory_store()
        data = pattern(5 * BLOCK_BYTES + 7)
        async with World(tmp_path / "cache", store).life() as world:
            await foreign(world, "f", data)
            assert await world.read("f") == data
            await world.until(lambda: world.content_of("f").place == PLACE_FILE)
            content = world.content_of("f")
            assert content.state is ContentState.PUBLISHED
            assert content.digests == digest_bytes(data)
            assert world.evictor.total_bytes == len(data)
        gets = store.count("get_range")
        async with World(tmp_path / "cache", store).life() as world:
            assert await world.read("f") == data
            assert store.count("get_range") == gets
            await world.until(lambda: world.evictor.total_bytes == len(data))

    trio.run(main)


def test_a_block_is_fetched_once_for_all_readers(tmp_path: Path) -> None:
    async def main() -> None:
        store = memory_store()
        data = pattern(16 * BLOCK_BYTES)
        async with World(tmp_path / "cache", store).life() as world:
            await foreign(world, "f", data)
            content = world.content_of("f").id
            fetched = 0

            async def before(name: str, _key: str) -> None:
                nonlocal fetched
                fetched += name == "get_range"
                await trio.sleep(0.01)

            store.before = before

            async def reader(start: int) -> None:
                for offset in range(start * BLOCK_BYTES, len(data), 128 * 1024):
                    assert await world.fetcher.read(content, offset, 128 * 1024) == data[offset : offset + 128 * 1024]

            async with trio.open_nursery() as nursery:
                for start in (0, 0, 0, 3, 7):
                    nursery.start_soon(reader, start)
            assert fetched <= 16, "no block came twice"

    trio.run(main)


def test_a_sequential_read_is_fetched_ahead_in_large_requests(tmp_path: Path) -> None:
    async def main() -> None:
        store = memory_store()
        data = pattern(32 * BLOCK_BYTES)
        async with World(tmp_path / "cache", store).life() as world:
            await foreign(world, "f", data)
            content = world.content_of("f").id

            async def before(_name: str, _key: str) -> None:
                await trio.sleep(0.02)

            store.before = before
            for offset in range(0, len(data), 128 * 1024):
                await world.fetcher.read(content, offset, 128 * 1024)
            assert store.count("get_range") == 8, "32 blocks in groups of 4"

    trio.run(main)


def test_a_small_read_costs_one_block(tmp_path: Path) -> None:
    async def main() -> None:
        store = memory_store()
        async with World(tmp_path / "cache", store).life() as world:
            data = pattern(64 * BLOCK_BYTES)
            await foreign(world, "f", data)
            await world.fetcher.read(world.content_of("f").id, 40 * BLOCK_BYTES + 5, 22)
            await trio.sleep(0.05)
            partial = world.fetcher._partials[world.content_of("f").id]
            assert partial.present_bytes == BLOCK_BYTES
            assert world.evictor.total_bytes == BLOCK_BYTES
            path = world.staging.path(world.content_of("f").id)
            assert path.stat().st_blocks * 512 <= 2 * BLOCK_BYTES, "the cache file is sparse"

    trio.run(main)


def test_int_1_wrong_bytes_from_the_bucket_are_never_returned(tmp_path: Path) -> None:
    async def main() -> None:
        store = memory_store()
        data = pattern(5 * BLOCK_BYTES)
        async with World(tmp_path / "cache", store).life() as world:
            await world.write("f", data)
            await world.drain()
            await world.reclaim("f")
            content = world.content_of("f").id
            wrong = 0
            real = store.store.get_range

            async def get_range(key: Key, offset: int, into: memoryview, **kwargs: object) -> None:
                nonlocal wrong
                await real(key, offset, into, **kwargs)  # type: ignore[arg-type]
                if wrong:
                    wrong -= 1
                    into[17] ^= 1

            store.store.get_range = get_range  # type: ignore[method-assign, assignment]
            wrong = 1
            assert await world.fetcher.read(content, 4 * BLOCK_BYTES, 100) == data[4 * BLOCK_BYTES :][:100], (
                "fetched again"
            )
            wrong = 1000
            with pytest.raises(IntegrityError, match="block 2 in the bucket is not what was sealed"):
                await world.fetcher.read(content, 2 * BLOCK_BYTES, 100)
            wrong = 0
            assert await world.read("f") == data

    trio.run(main)


def test_atm_1_an_object_that_changed_is_never_mixed_in(tmp_path: Path) -> None:
    async def main() -> None:
        async with World(tmp_path / "cache", memory_store()).life() as world:
            data = pattern(20 * BLOCK_BYTES)
            await foreign(world, "f", data)
            content = world.content_of("f").id
            assert await world.fetcher.read(content, 10 * BLOCK_BYTES, 10) == data[10 * BLOCK_BYTES :][:10]
            await world.put_foreign("f", b"\xff" * len(data))
            assert await world.fetcher.read(content, 10 * BLOCK_BYTES, 10) == data[10 * BLOCK_BYTES :][:10]
            with pytest.raises(IntegrityError, match="changed in the bucket"):
                await world.fetcher.read(content, 15 * BLOCK_BYTES, 10)
            await world.store.store.delete(Key("f"))
            with pytest.raises(IntegrityError, match="changed in the bucket"):
                await world.fetcher.read(content, 15 * BLOCK_BYTES, 10)

    trio.run(main)


def test_a_file_is_read_while_publication_moves_its_object(tmp_path: Path) -> None:
    async def main() -> None:
        async with World(tmp_path / "cache", memory_store(), cache_bytes=BLOCK_BYTES).life() as world:
            data = pattern(8 * BLOCK_BYTES, 5)
            await world.write("f0", data)
            await world.drain()
            await world.until(lambda: world.content_of("f0").place == PLACE_NONE)
            content = world.content_of("f0").id
            world.used.add(content)
            moving = True

            async def move() -> None:
                nonlocal moving
                for number in range(20):
                    world.rename(f"f{number}", f"f{number + 1}")
                    await world.drain()
                moving = False

            async with trio.open_nursery() as nursery:
                nursery.start_soon(move)
                reads = 0
                while moving:
                    offset = reads * 997_331 % (len(data) - 5000)
                    assert await world.fetcher.read(content, offset, 5000) == data[offset : offset + 5000]
                    reads += 1
                    await world.fetcher.drop(content)
            assert reads > 3
            assert await world.objects() == {"f20": data}

    trio.run(main)


def test_a_store_that_heals_is_waited_for_and_one_that_does_not_is_an_error(tmp_path: Path) -> None:
    async def main() -> None:
        store = memory_store()
        failures = 3

        async def before(_name: str, _key: str) -> None:
            nonlocal failures
            if failures:
                failures -= 1
                raise StoreUnavailableError("503")

        limits = FetchLimits(retry_first_s=0.001, retry_most_s=0.01, read_s=0.2)
        async with World(tmp_path / "cache", store, fetch_limits=limits).life() as world:
            data = pattern(BLOCK_BYTES)
            await foreign(world, "f", data)
            store.before = before
            assert await world.read("f") == data
            await foreign(world, "g", data)
            failures = 1_000_000
            with pytest.raises(StoreUnavailableError):
                await world.read("g")
            failures = 0
            assert await world.read("g") == data

    trio.run(main)


def test_a_reader_that_gives_up_does_not_disturb_the_others(tmp_path: Path) -> None:
    async def main() -> None:
        store = memory_store()
        gate = trio.Event()

        async def before(name: str, _key: str) -> None:
            if name == "get_range":
                await gate.wait()

        async with World(tmp_path / "cache", store).life() as world:
            data = pattern(BLOCK_BYTES)
            await foreign(world, "f", data)
            store.before = before
            answers: list[bytes] = []

            async def reader() -> None:
                answers.append(await world.read("f"))

            async with trio.open_nursery() as nursery:
                with trio.move_on_after(0.05) as scope:
                    await world.read("f")
                assert scope.cancelled_caught
                nursery.start_soon(reader)
                await trio.sleep(0.05)
                gate.set()
            assert answers == [data]
            assert store.count("get_range") == 1

    trio.run(main)


def test_a_full_disk_serves_reads_without_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with World(tmp_path / "cache", memory_store()).life() as world:
            data = pattern(5 * BLOCK_BYTES + 9)
            await foreign(world, "f", data)
            content = world.content_of("f").id
            real = world.staging.disk.pwrite

            async def pwrite(fd: int, offset: int, written: bytes | memoryview) -> None:
                if offset >= 2 * BLOCK_BYTES:
                    raise OSError(errno.ENOSPC, "no space")
                await real(fd, offset, written)

            monkeypatch.setattr(world.staging.disk, "pwrite", pwrite)
            for offset, length in ((0, 100), (BLOCK_BYTES + 5, 3 * BLOCK_BYTES), (5 * BLOCK_BYTES, 9)):
                assert await world.fetcher.read(content, offset, length) == data[offset : offset + length]
            with pytest.raises(OSError, match="no space") as caught:
                await world.fetcher.materialize(content)
            assert caught.value.errno == errno.ENOSPC
            monkeypatch.undo()
            await world.fetcher.materialize(content)
            assert world.staging.path(content).read_bytes() == data

    trio.run(main)


@pytest.mark.parametrize("size", [0, *SIZES])
def test_materialize_brings_all_of_it(size: int, tmp_path: Path) -> None:
    async def main() -> None:
        async with World(tmp_path / "cache", memory_store()).life() as world:
            data = pattern(size, 3)
            await foreign(world, "f", data)
            content = world.content_of("f").id
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(world.fetcher.materialize, content)
            assert world.content_of("f").place == PLACE_FILE
            assert world.content_of("f").digests == digest_bytes(data)
            assert world.staging.path(content).read_bytes() == data

    trio.run(main)


def test_a_content_that_is_dropped_while_it_is_read_leaves_no_file_open(tmp_path: Path) -> None:
    async def main() -> None:
        store = memory_store()
        gate, begun = trio.Event(), trio.Event()

        async def before(name: str, _key: str) -> None:
            if name == "get_range":
                begun.set()
                await gate.wait()

        async with World(tmp_path / "cache", store).life() as world:
            await foreign(world, "f", pattern(3 * BLOCK_BYTES))
            content = world.content_of("f").id
            store.before = before

            async def reader() -> None:
                with pytest.raises(IntegrityError):
                    await world.fetcher.read(content, 0, 100)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(reader)
                await begun.wait()
                partial = world.fetcher._partials[content]
                world.unlink("f")
                gate.set()
            await world.until(lambda: partial.fd is None)
            assert world.evictor.total_bytes == 0

    trio.run(main)
