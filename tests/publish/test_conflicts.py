"""Objects that others change behind the mount's back: neither side's bytes are destroyed, and it is told of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio
from bucket_world import World, memory_store, pattern

from ckptfs.namespace.paths import NAME_BYTES_MAX
from ckptfs.publish import PublishLimits
from ckptfs.publish.conflict import conflict_name
from ckptfs.staging import BLOCK_BYTES
from ckptfs.types import ContentState, Key

if TYPE_CHECKING:
    from pathlib import Path

LARGE = pattern(3 * BLOCK_BYTES, 3)


def test_the_loser_is_kept_beside_the_winner(tmp_path: Path) -> None:
    async def main() -> None:
        async with World(tmp_path / "cache", memory_store()).life() as world:
            world.mkdir("d")
            for path, data in (("d/small", b"mine"), ("d/large", LARGE)):
                await world.write(path, b"first")
                await world.drain()
                await world.put_foreign(path, b"theirs " + path.encode())
                await world.write(path, data)
                await world.drain()
                conflict = world.publisher.conflicts[-1]
                assert conflict["key"] == path
                kept_as = str(conflict["kept_as"])
                assert kept_as.startswith(f"{path}.ckptfs-conflict-")
                objects = await world.objects()
                assert objects[path] == b"theirs " + path.encode()
                assert objects[kept_as] == data
                assert await world.read(path) == objects[path]
                assert await world.read(kept_as) == data

    trio.run(main)


def test_an_object_that_was_there_before_the_file_is_kept(tmp_path: Path) -> None:
    """The mount did not know of it (its listing was older)."""

    async def main() -> None:
        async with World(tmp_path / "cache", memory_store()).life() as world:
            await world.put_foreign("f", b"theirs")
            await world.write("f", b"mine")
            await world.drain()
            objects = await world.objects()
            assert sorted(objects.values()) == [b"mine", b"theirs"]
            assert objects["f"] == b"theirs"

    trio.run(main)


def test_equal_bytes_are_no_conflict(tmp_path: Path) -> None:
    async def main() -> None:
        async with World(tmp_path / "cache", memory_store()).life() as world:
            for path, data in (("small", b"same"), ("large", LARGE), ("empty", b"")):
                await world.put_foreign(path, data)
                await world.write(path, data)
            await world.drain()
            assert world.publisher.conflicts == []
            assert await world.objects() == {"small": b"same", "large": LARGE, "empty": b""}
            assert world.content_of("large").state is ContentState.PUBLISHED

    trio.run(main)


def test_an_object_that_others_deleted_is_put_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with World(tmp_path / "cache", memory_store()).life() as world:
            await world.write("f", b"one")
            await world.drain()
            await world.store.store.delete(Key("f"))
            await world.write("f", b"two")
            await world.drain()
            assert await world.objects() == {"f": b"two"}
            assert world.publisher.conflicts == []
            await world.store.store.delete(Key("f"))
            world.unlink("f")
            await world.drain()
            assert await world.objects() == {}
            assert world.publisher.conflicts == []

    trio.run(main)


def test_a_changed_object_is_not_deleted(tmp_path: Path) -> None:
    async def main() -> None:
        async with World(tmp_path / "cache", memory_store()).life() as world:
            await world.write("f", b"one")
            await world.drain()
            await world.put_foreign("f", b"theirs")
            world.unlink("f")
            await world.drain()
            assert await world.objects() == {"f": b"theirs"}
            assert await world.read("f") == b"theirs"
            assert [conflict["key"] for conflict in world.publisher.conflicts] == ["f"]

    trio.run(main)


def test_a_changed_object_below_a_removed_directory_is_not_deleted(tmp_path: Path) -> None:
    async def main() -> None:
        async with World(tmp_path / "cache", memory_store()).life() as world:
            world.mkdir("d")
            await world.write("d/f", b"one")
            await world.drain()
            await world.put_foreign("d/f", b"theirs")
            world.unlink("d/f")
            world.tree.rmdir(*world.place("d"))
            await world.drain()
            assert await world.objects() == {"d/f": b"theirs"}

    trio.run(main)


def test_a_changed_target_of_a_rename_is_kept(tmp_path: Path) -> None:
    async def main() -> None:
        async with World(tmp_path / "cache", memory_store()).life() as world:
            await world.write("a", LARGE)
            await world.write("b", b"old b")
            await world.drain()
            await world.reclaim("a")
            await world.put_foreign("b", b"theirs")
            world.rename("a", "b")
            await world.drain()
            objects = await world.objects()
            kept_as = str(world.publisher.conflicts[0]["kept_as"])
            assert objects == {"b": b"theirs", kept_as: LARGE}

    trio.run(main)


def test_a_changed_source_of_a_rename_is_put_from_here(tmp_path: Path) -> None:
    async def main() -> None:
        async with World(tmp_path / "cache", memory_store()).life() as world:
            await world.write("a", LARGE)
            await world.drain()
            await world.put_foreign("a", b"theirs")
            world.rename("a", "b")
            await world.drain()
            assert await world.objects() == {"a": b"theirs", "b": LARGE}
            assert await world.read("a") == b"theirs"

    trio.run(main)


def test_a_changed_source_whose_bytes_are_nowhere_else_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        async with World(tmp_path / "cache", memory_store()).life() as world:
            await world.write("a", LARGE)
            await world.drain()
            await world.reclaim("a")
            await world.put_foreign("a", b"theirs")
            world.rename("a", "b")
            await world.drain()
            assert await world.objects() == {"a": b"theirs"}
            lost = world.content_of("b")
            assert lost.state is ContentState.FAULTY
            assert "behind the mount's back" in lost.error

    trio.run(main)


def test_a_conflict_beside_a_name_of_full_length(tmp_path: Path) -> None:
    async def main() -> None:
        async with World(tmp_path / "cache", memory_store()).life() as world:
            name = "n" * NAME_BYTES_MAX
            await world.put_foreign(name, b"theirs")
            await world.write(name, b"mine")
            await world.drain()
            objects = await world.objects()
            assert objects[name] == b"theirs"
            assert objects[str(world.publisher.conflicts[0]["kept_as"])] == b"mine"

    trio.run(main)
    assert len(conflict_name(b"n" * NAME_BYTES_MAX, 10**15, 99)) == NAME_BYTES_MAX


def test_a_copy_of_our_object_made_by_others_is_theirs(tmp_path: Path) -> None:
    """It carries our metadata, but not for its key."""

    async def main() -> None:
        store = memory_store()
        async with World(tmp_path / "cache", store).life() as world:
            await world.write("a", b"A")
            await world.write("b", b"B")
            await world.drain()
            info = await store.store.head(Key("a"))
            await store.store.copy(Key("a"), Key("b"), etag=info.etag)
            await world.write("b", b"B2")
            await world.drain()
            objects = await world.objects()
            assert objects["b"] == b"A"
            assert sorted(objects.values()) == [b"A", b"A", b"B2"]

    trio.run(main)


def test_a_file_that_was_not_changed_here_is_no_conflict(tmp_path: Path) -> None:
    """After a restart every obligation is looked at anew; what others did to an unchanged file is the listing's."""

    async def main() -> None:
        store = memory_store()
        async with World(tmp_path / "cache", store).life(publishing=False) as world:
            for path in ("changed", "gone"):
                world.adopt(*world.place(path), await world.put_foreign(path, b"one"))
                world.bucket.oblige(Key(path), world.namespace.state.lsn)
            await world.put_foreign("changed", b"two")
            await store.store.delete(Key("gone"))
        async with World(tmp_path / "cache", store).life() as world:
            await world.drain()
            assert await world.objects() == {"changed": b"two"}
            assert world.publisher.conflicts == []
            assert world.content_of("changed").state is ContentState.RECLAIMED
            assert world.content_of("gone").state is ContentState.RECLAIMED

    trio.run(main)


def test_a_lost_answer_followed_by_a_rewrite_is_no_conflict(tmp_path: Path) -> None:
    async def main() -> None:
        store = memory_store()
        lose = True
        store.lose_answers = lambda name, _key: lose and name in {"put", "complete_upload"}
        world = World(
            tmp_path / "cache",
            store,
            PublishLimits(part_bytes=BLOCK_BYTES, retry_first_s=0.3, retry_most_s=0.3),
        )
        async with world.life():
            await world.write("f", b"one")
            await world.write("g", LARGE)
            await world.until(lambda: world.publisher.pending()["failing"] == 2)
            await world.write("f", b"two")
            await world.write("g", b"two")
            lose = False
            await world.drain()
            assert await world.objects() == {"f": b"two", "g": b"two"}
            assert world.publisher.conflicts == []

    trio.run(main)
