"""Objects: put, head, read."""

# ruff: noqa: D103 - the name of a case is its sentence
from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from ckptfs.errors import ObjectNotFoundError, PreconditionError, StoreRejectedError
from ckptfs.testing.conformance.subject import Deviation, add_case, list_all, outcome, part_bytes, pattern, read
from ckptfs.types import Key

if TYPE_CHECKING:
    from ckptfs.objectstore.base import Body
    from ckptfs.testing.conformance.subject import Subject


@add_case
async def probe_returns_for_a_bucket_that_is_there(subject: Subject) -> None:
    async with subject.store() as store:
        await store.probe()


@add_case
async def an_object_is_read_back_at_every_size(subject: Subject) -> None:
    async with subject.store() as store:
        part = part_bytes(store)
        for size in (0, 1, 4095, 4096, part - 1, part, part + 1):
            body = pattern(size, seed=size)
            put = await store.put(Key(f"size/{size}"), body)
            assert (put.key, put.size) == (f"size/{size}", size)
            head = await store.head(put.key)
            assert (head.size, head.etag) == (size, put.etag)
            assert await read(store, head) == body


@add_case
async def every_kind_of_buffer_is_taken(subject: Subject) -> None:
    async with subject.store() as store:
        body = pattern(100_001)
        whole = memoryview(bytearray(b"xx" + body + b"xx"))
        buffers: dict[str, Body] = {"bytes": body, "bytearray": bytearray(body), "memoryview": whole[2:-2]}
        for name, buffer in buffers.items():
            info = await store.put(Key(name), buffer)
            assert await read(store, info) == body


@add_case
async def what_is_not_there_is_not_found(subject: Subject) -> None:
    async with subject.store() as store:
        await store.put(Key("there/a"), b"a")
        keys = [Key("none"), Key("there"), Key("there/a/b")]
        if Deviation.DIRECTORY_OBJECTS not in subject.deviations:
            keys.append(Key("there/"))
        for key in keys:
            assert await outcome(store.head(key)) is ObjectNotFoundError, key
            assert await outcome(store.get_range(key, 0, memoryview(bytearray(1)))) is ObjectNotFoundError, key


@add_case
async def a_range_is_filled_exactly(subject: Subject) -> None:
    async with subject.store() as store:
        body = pattern(300_000)
        info = await store.put(Key("ranges"), body)
        for offset, length in ((0, 0), (0, 1), (1, 1), (0, 300_000), (4095, 4098), (299_999, 1), (300_000, 0)):
            buffer = bytearray(b"\xee" * (length + 2))
            await store.get_range(info.key, offset, memoryview(buffer)[1:-1], etag=info.etag)
            assert bytes(buffer) == b"\xee" + body[offset : offset + length] + b"\xee", (offset, length)


@add_case
async def a_range_past_the_end_is_rejected(subject: Subject) -> None:
    async with subject.store() as store:
        info = await store.put(Key("short"), pattern(1000))
        for offset, length in ((1000, 1), (999, 2), (0, 1001), (5000, 10), (1001, 0)):
            call = store.get_range(info.key, offset, memoryview(bytearray(length)), etag=info.etag)
            assert await outcome(call) is StoreRejectedError, (offset, length)


@add_case
async def a_read_is_of_one_generation(subject: Subject) -> None:
    async with subject.store() as store:
        old = await store.put(Key("replaced"), b"old old")
        new = await store.put(Key("replaced"), b"new new")
        assert old.etag != new.etag
        for length in (7, 0):
            call = store.get_range(old.key, 0, memoryview(bytearray(length)), etag=old.etag)
            assert await outcome(call) is PreconditionError
        assert await read(store, new) == b"new new"


@add_case
async def a_reader_beside_writers_sees_whole_generations_only(subject: Subject) -> None:
    async with subject.store() as store:
        size = 200_000
        key = Key("hot")
        await store.put(key, bytes([1]) * size)
        done = trio.Event()

        async def write() -> None:
            for value in range(2, 12):
                await store.put(key, bytes([value]) * size)
            done.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            while not done.is_set():
                buffer = bytearray(size)
                await store.get_range(key, 0, memoryview(buffer))
                assert len(set(buffer)) == 1, "bytes of two generations in one read"
        assert (await read(store, await store.head(key)))[:1] == bytes([11])


@add_case
async def the_last_put_stands_and_every_generation_has_its_etag(subject: Subject) -> None:
    async with subject.store() as store:
        etags = set()
        for value in range(24):
            # Same length, as fast as it goes: neither a size nor a coarse clock can tell them apart.
            info = await store.put(Key("again"), bytes([value]) * 16)
            assert (await store.head(info.key)).etag == info.etag
            etags.add(info.etag)
        assert len(etags) == 24
        assert await read(store, await store.head(Key("again"))) == bytes([23]) * 16


@add_case
async def an_etag_is_the_same_for_all_who_look(subject: Subject) -> None:
    async with subject.store() as store, subject.store() as other:
        info = await store.put(Key("seen"), b"seen")
        assert (await other.head(info.key)).etag == info.etag
        objects, _ = await list_all(other)
        assert [(o.key, o.etag, o.size) for o in objects] == [(info.key, info.etag, 4)]


@add_case
async def metadata_makes_the_round_trip(subject: Subject) -> None:
    metadata = {"plain": "value", "with-dash": "a b=c;d,e/f", "json": '{"mode": 33188}', "n1": "x" * 500}
    async with subject.store() as store:
        put = await store.put(Key("put"), b"x", metadata=metadata)
        assert put.metadata == metadata
        assert (await store.head(Key("put"))).metadata == metadata
        begun = await store.begin_upload(Key("parts"), metadata=metadata)
        done = await store.complete_upload(begun, [await store.put_part(begun, 1, b"x")])
        assert (await store.head(done.key)).metadata == metadata
        replaced = await store.put(Key("put"), b"x")
        assert (await store.head(replaced.key)).metadata == {}


@add_case
async def metadata_that_would_not_survive_is_rejected(subject: Subject) -> None:
    async with subject.store() as store:
        for metadata in (
            {"Upper": "x"},
            {"a": "caf\u00e9"},
            {"a": " x"},
            {"a": "x\ny"},
            {"": "x"},
            {"a": ""},
            {"a": "x" * 2048},
        ):
            assert await outcome(store.put(Key("odd"), b"", metadata=metadata)) is StoreRejectedError, metadata
        assert await outcome(store.head(Key("odd"))) is ObjectNotFoundError


@add_case
async def the_time_of_an_object_is_near_now(subject: Subject) -> None:
    async with subject.store() as store:
        first = await store.put(Key("a"), b"")
        later = await store.put(Key("b"), b"")
        assert first.mtime_ns <= later.mtime_ns + 2_000_000_000
        head = await store.head(Key("a"))
        assert abs(head.mtime_ns - first.mtime_ns) <= 2_000_000_000
