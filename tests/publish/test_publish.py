"""What is written is in the bucket, whole and verified; what fails is tried again; nothing wrong ever gets there."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
import trio
from bucket_world import WatchedStore, World, memory_store, pattern

from ckptfs.env import RealEnv
from ckptfs.errors import StoreDeniedError, StoreUnavailableError
from ckptfs.objectstore.file import FileObjectStore
from ckptfs.publish import PublishLimits
from ckptfs.publish.upload import root_digest
from ckptfs.staging import BLOCK_BYTES, digest_bytes
from ckptfs.types import ContentState, Key

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SIZES = [0, 1, 4095, 65_536, 65_537, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 5 * BLOCK_BYTES + 17]


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> WatchedStore:
    if request.param == "memory":
        return memory_store()
    (tmp_path / "bucket").mkdir()
    return WatchedStore(FileObjectStore(str(tmp_path / "bucket"), RealEnv()))


def test_files_of_every_size_are_objects_byte_for_byte(store: WatchedStore, tmp_path: Path) -> None:
    async def main() -> None:
        async with World(tmp_path / "cache", store).life() as world:
            world.mkdir("d")
            wanted = {f"d/{size}": pattern(size, size) for size in SIZES}
            for path, data in wanted.items():
                await world.write(path, data)
            await world.drain()
            assert await world.objects() == wanted
            for path, data in wanted.items():
                content = world.content_of(path)
                assert content.state is ContentState.PUBLISHED
                assert content.key == path
                info = await store.store.head(Key(path))
                assert info.etag == content.etag
                assert info.metadata is not None
                assert info.metadata["ckptfs-digest"] == root_digest(digest_bytes(data))
                inode = world.find(path)
                assert inode is not None
                assert info.metadata["mode"] == str(inode.mode)
                assert float(info.metadata["mtime"]) == pytest.approx(inode.mtime_ns / 1e9)
            assert not await store.list_uploads()
            assert world.publisher.pending() == {"objects": 0, "bytes": 0, "failing": 0}

    trio.run(main)


def test_parts_go_up_in_parallel_and_memory_is_bounded(tmp_path: Path) -> None:
    async def main() -> None:
        store = memory_store()
        gate = trio.Event()

        async def before(name: str, _key: str) -> None:
            if name == "put_part":
                await gate.wait()

        store.before = before
        world = World(tmp_path / "cache", store, PublishLimits(part_bytes=BLOCK_BYTES, upload_count_max=4))
        async with world.life():
            for number in range(4):
                await world.write(f"f{number}", pattern(16 * BLOCK_BYTES, number))
            budget = world.publisher._hand.uploader.budget
            await world.until(lambda: budget.used_bytes == 4 * BLOCK_BYTES)
            gate.set()
            await world.drain()
            assert 1 < store.parts_most <= 4
            assert budget.used_bytes == 0
            assert await world.objects() == {f"f{n}": pattern(16 * BLOCK_BYTES, n) for n in range(4)}

    trio.run(main)


def test_a_stalled_put_holds_up_no_other_key(tmp_path: Path) -> None:
    async def main() -> None:
        store = memory_store()

        async def before(name: str, key: str) -> None:
            if name == "put" and key == "stalled":
                await trio.sleep_forever()

        store.before = before
        world = World(
            tmp_path / "cache", store, PublishLimits(part_bytes=BLOCK_BYTES, upload_count_max=1, request_s=60)
        )
        async with world.life():
            await world.write("stalled", b"x")
            for number in range(200):
                await world.write(f"f{number}", b"y")
            await world.publisher.wait([Key(f"f{number}") for number in range(200)])
            assert not await world.is_there("stalled")
            assert world.publisher.pending()["objects"] == 1

    trio.run(main)


def test_a_request_without_an_answer_is_given_up_and_tried_again(tmp_path: Path) -> None:
    async def main() -> None:
        store = memory_store()
        stalls = iter([True, True])

        async def before(name: str, _key: str) -> None:
            if name == "put" and next(stalls, False):
                await trio.sleep_forever()

        store.before = before
        world = World(tmp_path / "cache", store, PublishLimits(request_s=0.05, retry_first_s=0.01, retry_most_s=0.01))
        async with world.life():
            await world.write("f", b"bytes")
            await world.drain()
            assert await world.objects() == {"f": b"bytes"}

    trio.run(main)


@pytest.mark.parametrize("error", [StoreUnavailableError("503"), StoreDeniedError("403")])
def test_a_store_that_heals_gets_everything(error: Exception, tmp_path: Path) -> None:
    async def main() -> None:
        store = memory_store()
        broken = True

        async def before(name: str, _key: str) -> None:
            if broken and name in {"put", "put_part", "begin_upload", "complete_upload"}:
                raise error

        store.before = before
        async with World(tmp_path / "cache", store).life() as world:
            wanted = {f"f{number}": pattern(number * 70_000, number) for number in range(30)}
            for path, data in wanted.items():
                await world.write(path, data)
            await world.until(lambda: world.publisher.pending()["failing"] == 30)
            assert dict(world.publisher.errors()).keys() == wanted.keys()
            assert world.publisher.lag_s() >= 0
            broken = False
            await world.drain()
            assert await world.objects() == wanted
            assert world.publisher.pending() == {"objects": 0, "bytes": 0, "failing": 0}
            assert not await store.list_uploads()

    trio.run(main)


@pytest.mark.parametrize("size", [BLOCK_BYTES, 4 * BLOCK_BYTES])
def test_int_1_wrong_bytes_in_staging_are_never_published(size: int, tmp_path: Path) -> None:
    async def main() -> None:
        store = memory_store()
        async with World(tmp_path / "cache", store).life() as world:
            await world.write("f", b"old")
            await world.drain()
            content = await world.write("f", pattern(size), oblige=False)
            number = content.id
            with world.staging.path(number).open("r+b") as file:
                file.seek(size - 3)
                file.write(b"\xff")
            inode = world.find("f")
            assert inode is not None
            world.contents.oblige(inode)
            await world.drain()
            faulty = world.content_of("f")
            assert faulty.state is ContentState.FAULTY
            assert "not what was sealed" in faulty.error
            assert await world.objects() == {"f": b"old"}
            assert not await store.list_uploads()

    trio.run(main)


@pytest.mark.parametrize("kind", ["gone", "short"])
def test_missing_bytes_in_staging_are_never_published(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with World(tmp_path / "cache", memory_store()).life() as world:
            content = await world.write("f", pattern(2 * BLOCK_BYTES), oblige=False)
            if kind == "gone":
                world.staging.path(content.id).unlink()
            else:
                os.truncate(world.staging.path(content.id), BLOCK_BYTES)
            inode = world.find("f")
            assert inode is not None
            world.contents.oblige(inode)
            await world.drain()
            assert world.content_of("f").state is ContentState.FAULTY
            assert await world.objects() == {}

    trio.run(main)


def test_wrong_staged_bytes_of_a_published_file_are_taken_from_the_bucket(tmp_path: Path) -> None:
    async def main() -> None:
        store = memory_store()
        async with World(tmp_path / "cache", store).life() as world:
            data = pattern(2 * BLOCK_BYTES)
            content = await world.write("f", data)
            number = content.id
            await world.drain()
            world.staging.path(number).write_bytes(b"\0" * len(data))
            world.rename("f", "g")
            await world.drain()
            assert await world.objects() == {"g": data}

    trio.run(main)


def test_an_object_that_the_store_got_wrong_is_put_again(tmp_path: Path) -> None:
    async def main() -> None:
        store = memory_store()
        cuts = iter([True, True])
        real_put = store.store.put

        async def put(key: Key, body: bytes, **kwargs: object) -> object:
            if next(cuts, False):
                body = bytes(body)[:-1]
            return await real_put(key, body, **kwargs)  # type: ignore[arg-type]

        store.store.put = put  # type: ignore[method-assign, assignment]
        async with World(tmp_path / "cache", store).life() as world:
            await world.write("f", b"all of it")
            await world.drain()
            assert await world.objects() == {"f": b"all of it"}
            assert world.publisher.conflicts == []

    trio.run(main)


@pytest.mark.parametrize("lost", ["put", "complete_upload", "copy", "delete"])
def test_pub_1_a_lost_answer_changes_nothing(lost: str, tmp_path: Path) -> None:
    async def main() -> None:
        store = memory_store()
        seen: dict[str, int] = {}

        def lose(name: str, key: str) -> bool:
            seen[key] = seen.get(key, 0) + (name == lost)
            return name == lost and seen[key] <= 2

        async with World(tmp_path / "cache", store).life() as world:
            store.lose_answers = lose
            large, small = pattern(3 * BLOCK_BYTES, 1), b"small"
            await world.write("large", large)
            await world.write("small", small)
            await world.drain()
            assert await world.objects() == {"large": large, "small": small}
            await world.reclaim("large", "small")
            world.rename("large", "renamed")
            await world.write("small", b"newer")
            await world.drain()
            assert await world.objects() == {"renamed": large, "small": b"newer"}
            world.unlink("small")
            await world.drain()
            assert await world.objects() == {"renamed": large}
            assert world.publisher.conflicts == []
            assert not await store.list_uploads()

    trio.run(main)


def test_a_lost_answer_to_a_put_is_cleaned_up_when_the_file_is_gone(tmp_path: Path) -> None:
    async def main() -> None:
        store = memory_store()
        store.lose_answers = lambda name, _key: name == "put"
        world = World(tmp_path / "cache", store, PublishLimits(retry_first_s=0.2, retry_most_s=0.2))
        async with world.life():
            await world.write("f", b"bytes")
            await world.until(lambda: world.publisher.pending()["failing"] == 1)
            assert await world.is_there("f")
            world.unlink("f")
            store.lose_answers = lambda _name, _key: False
            await world.drain()
            assert await world.objects() == {}

    trio.run(main)


def test_a_rewrite_while_the_old_content_goes_up_is_what_the_bucket_ends_with(tmp_path: Path) -> None:
    async def main() -> None:
        store = memory_store()
        gate, begun = trio.Event(), trio.Event()

        async def before(name: str, _key: str) -> None:
            if name in {"put_part", "put"}:
                begun.set()
                await gate.wait()

        store.before = before
        async with World(tmp_path / "cache", store).life() as world:
            await world.write("f", pattern(3 * BLOCK_BYTES, 1))
            await world.write("g", pattern(3 * BLOCK_BYTES, 2))
            await begun.wait()
            await world.write("f", b"new")
            world.unlink("g")
            gate.set()
            await world.drain()
            assert await world.objects() == {"f": b"new"}
            assert not await store.list_uploads()

    trio.run(main)


def test_removed_before_it_was_published_leaves_nothing(tmp_path: Path) -> None:
    """rclone#6809: a directory that was renamed and removed before the upload."""

    async def main() -> None:
        store = memory_store()
        async with World(tmp_path / "cache", store).life(publishing=False) as world:
            world.mkdir("d")
            await world.write("d/f", b"bytes")
            world.rename("d", "e")
            world.unlink("e/f")
            world.tree.rmdir(*world.place("e"))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(world.publisher.run)
                await world.drain()
                nursery.cancel_scope.cancel()
            assert await world.objects() == {}
            assert store.count("put") == 0

    trio.run(main)


def test_a_file_that_is_being_rewritten_keeps_its_old_object(tmp_path: Path) -> None:
    """The shield: an OPEN content that a sync committed is not published, and the old object stays."""

    async def main() -> None:
        async with World(tmp_path / "cache", memory_store()).life() as world:
            await world.write("f", b"old")
            await world.drain()
            inode = world.find("f")
            assert inode is not None
            content = world.contents.begin(inode.ino, 2)
            content.data, content.size = b"half", 4
            world.drop(world.contents.commit(inode, content.id))
            world.contents.oblige(inode)
            await world.drain()
            assert await world.objects() == {"f": b"old"}

    trio.run(main)


def test_more_obligations_than_memory_holds_are_all_met(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ckptfs.namespace.bucket.FRESH_MAX", 20)
    monkeypatch.setattr("ckptfs.publish.publisher.REFILL_COUNT", 15)

    async def main() -> None:
        async with World(tmp_path / "cache", memory_store()).life(publishing=False) as world:
            for number in range(300):
                await world.write(f"f{number}", b"%d" % number)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(world.publisher.run)
                await world.drain()
                nursery.cancel_scope.cancel()
            assert await world.objects() == {f"f{n}": b"%d" % n for n in range(300)}

    trio.run(main)


def wait_for_calls(store: WatchedStore, name: str) -> Callable[[], bool]:
    return lambda: store.count(name) > 0
