"""Multipart uploads."""

# ruff: noqa: D103 - the name of a case is its sentence
from __future__ import annotations

from typing import TYPE_CHECKING

from ckptfs.errors import ObjectNotFoundError, PreconditionError, StoreRejectedError
from ckptfs.objectstore.base import ABSENT, Condition
from ckptfs.testing.conformance.subject import add_case, list_all, outcome, part_bytes, pattern, read, upload
from ckptfs.types import Key

if TYPE_CHECKING:
    from ckptfs.testing.conformance.subject import Subject


@add_case
async def an_upload_is_visible_only_when_complete(subject: Subject) -> None:
    async with subject.store() as store:
        size = part_bytes(store)
        bodies = [pattern(size, 1), pattern(size, 2), pattern(7, 3)]
        begun = await store.begin_upload(Key("up/load"))
        parts = []
        for number in (3, 1, 2):
            parts.append(await store.put_part(begun, number, bodies[number - 1]))
            assert await outcome(store.head(begun.key)) is ObjectNotFoundError
            assert (await list_all(store))[0] == []
        assert [u.upload_id for u in await store.list_uploads("up/")] == [begun.upload_id]
        assert list(await store.list_uploads("other/")) == []
        info = await store.complete_upload(begun, parts)
        assert info.size == sum(map(len, bodies))
        head = await store.head(info.key)
        assert (head.etag, head.size) == (info.etag, info.size)
        assert await read(store, head) == b"".join(bodies)
        assert list(await store.list_uploads()) == []


@add_case
async def ranges_across_parts_are_exact(subject: Subject) -> None:
    async with subject.store() as store:
        size = part_bytes(store)
        whole = pattern(size, 1) + pattern(size, 2) + pattern(100, 3)
        info = await upload(store, Key("parts"), [whole[:size], whole[size : 2 * size], whole[2 * size :]])
        for offset in (0, size - 1, size, size + 1, 2 * size - 50, len(whole) - 100):
            buffer = bytearray(100)
            await store.get_range(info.key, offset, memoryview(buffer), etag=info.etag)
            assert bytes(buffer) == whole[offset : offset + 100]


@add_case
async def a_part_sent_again_replaces_the_earlier(subject: Subject) -> None:
    async with subject.store() as store:
        begun = await store.begin_upload(Key("twice"))
        await store.put_part(begun, 1, b"wrong")
        part = await store.put_part(begun, 1, b"right")
        assert await read(store, await store.complete_upload(begun, [part])) == b"right"


@add_case
async def only_the_parts_named_are_in_the_object(subject: Subject) -> None:
    async with subject.store() as store:
        begun = await store.begin_upload(Key("some"))
        size = part_bytes(store)
        first = await store.put_part(begun, 1, pattern(size))
        await store.put_part(begun, 2, b"left out")
        last = await store.put_part(begun, 7, b"end")
        assert await read(store, await store.complete_upload(begun, [last, first])) == pattern(size) + b"end"


@add_case
async def an_empty_object_can_be_one_empty_part(subject: Subject) -> None:
    async with subject.store() as store:
        info = await upload(store, Key("nothing"), [b""])
        assert info.size == 0
        assert await read(store, await store.head(info.key)) == b""


@add_case
async def completion_honours_its_condition(subject: Subject) -> None:
    async with subject.store() as store:
        key = Key("cond")
        first = await upload(store, key, [b"first"], condition=ABSENT)
        assert await outcome(upload(store, key, [b"no"], condition=ABSENT)) is PreconditionError
        second = await upload(store, key, [b"second"], condition=Condition(etag=first.etag))
        assert await outcome(upload(store, key, [b"no"], condition=Condition(etag=first.etag))) is PreconditionError
        assert await read(store, second) == b"second"
        for left in await store.list_uploads():
            await store.abort_upload(left)


@add_case
async def wrong_parts_are_rejected_and_nothing_is_visible(subject: Subject) -> None:
    async with subject.store() as store:
        begun = await store.begin_upload(Key("wrong"))
        part = await store.put_part(begun, 1, b"one")
        assert await outcome(store.complete_upload(begun, [])) is StoreRejectedError
        forged = type(part)(2, part.etag, part.size, part.checksum)
        assert await outcome(store.complete_upload(begun, [part, forged])) is StoreRejectedError
        assert await outcome(store.head(begun.key)) is ObjectNotFoundError
        await store.abort_upload(begun)


@add_case
async def abort_leaves_nothing(subject: Subject) -> None:
    async with subject.store() as store:
        begun = await store.begin_upload(Key("aborted"))
        part = await store.put_part(begun, 1, pattern(1000))
        await store.abort_upload(begun)
        await store.abort_upload(begun)
        assert list(await store.list_uploads()) == []
        assert await outcome(store.put_part(begun, 2, b"x")) is ObjectNotFoundError
        assert await outcome(store.complete_upload(begun, [part])) is ObjectNotFoundError
        assert (await list_all(store))[0] == []


@add_case
async def an_upload_is_continued_by_another_process(subject: Subject) -> None:
    async with subject.store() as store, subject.store() as other:
        size = part_bytes(store)
        begun = await store.begin_upload(Key("resumed"))
        parts = [await store.put_part(begun, 1, pattern(size))]
        parts.append(await other.put_part(begun, 2, b"tail"))
        assert await read(other, await other.complete_upload(begun, parts)) == pattern(size) + b"tail"
