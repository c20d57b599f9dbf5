"""Closing, cancelling, and many calls at once."""

# ruff: noqa: D103 - the name of a case is its sentence
from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from ckptfs.testing.conformance.subject import add_case, list_all, outcome, pattern, read
from ckptfs.types import Key

if TYPE_CHECKING:
    from ckptfs.testing.conformance.subject import Subject


@add_case
async def calls_after_close_are_refused(subject: Subject) -> None:
    store = subject.open()
    info = await store.put(Key("x"), b"x")
    begun = await store.begin_upload(Key("y"))
    await store.aclose()
    await store.aclose()
    buffer = memoryview(bytearray(1))
    calls = [
        store.probe(),
        store.head(info.key),
        store.get_range(info.key, 0, buffer),
        store.put(info.key, b"y"),
        store.put_part(begun, 1, b"y"),
        store.abort_upload(begun),
        store.list_uploads(),
        store.list_page(),
        store.delete(info.key),
        store.copy(info.key, Key("z"), etag=info.etag),
    ]
    for call in calls:
        assert await outcome(call) is not None
    async with subject.store() as other:
        assert await read(other, info) == b"x"
        await other.abort_upload(begun)


@add_case
async def a_cancelled_put_leaves_old_or_new_and_a_usable_store(subject: Subject) -> None:
    async with subject.store() as store:
        old = pattern(50_000, 1)
        await store.put(Key("cancelled"), old)
        for turn in range(8):
            new = pattern(50_000, 2 + turn)
            with trio.move_on_after(0.0005 * turn):
                await store.put(Key("cancelled"), new)
            now = await read(store, await store.head(Key("cancelled")))
            assert now in {old, new}
            old = now
        with trio.CancelScope() as scope:
            scope.cancel()
            await store.put(Key("never"), b"x")
        await store.put(Key("after"), b"x")
        assert await read(store, await store.head(Key("after"))) == b"x"


@add_case
async def many_calls_at_once_all_come_back_right(subject: Subject) -> None:
    async with subject.store() as store:

        async def one(n: int) -> None:
            body = pattern(1000 + n, n)
            info = await store.put(Key(f"many/{n:03d}"), body)
            assert await read(store, await store.head(info.key)) == body

        async with trio.open_nursery() as nursery:
            for n in range(100):
                nursery.start_soon(one, n)
        objects, _ = await list_all(store, limit=17)
        assert [info.key for info in objects] == [f"many/{n:03d}" for n in range(100)]
