"""Server-side copies."""

# ruff: noqa: D103 - the name of a case is its sentence
from __future__ import annotations

from typing import TYPE_CHECKING

from ckptfs.errors import ObjectNotFoundError, PreconditionError
from ckptfs.objectstore.base import ABSENT, Condition
from ckptfs.testing.conformance.subject import add_case, outcome, pattern, read
from ckptfs.types import ETag, Key

if TYPE_CHECKING:
    from ckptfs.testing.conformance.subject import Subject


@add_case
async def a_copy_is_the_same_bytes(subject: Subject) -> None:
    async with subject.store() as store:
        body = pattern(100_000)
        source = await store.put(Key("from/it"), body, metadata={"kind": "source"})
        copied = await store.copy(source.key, Key("to/it"), etag=source.etag)
        assert copied.size == len(body)
        head = await store.head(copied.key)
        assert (head.etag, head.metadata) == (copied.etag, {"kind": "source"})
        assert await read(store, copied) == body
        other = await store.copy(source.key, Key("to/other"), etag=source.etag, metadata={"kind": "copy"})
        assert (await store.head(other.key)).metadata == {"kind": "copy"}
        assert await read(store, source) == body


@add_case
async def a_copy_is_of_the_generation_asked_for(subject: Subject) -> None:
    async with subject.store() as store:
        missing = await outcome(store.copy(Key("none"), Key("to"), etag=ETag("0" * 32)))
        assert missing is ObjectNotFoundError
        old = await store.put(Key("from"), b"old")
        await store.put(Key("from"), b"new")
        assert await outcome(store.copy(old.key, Key("to"), etag=old.etag)) is PreconditionError
        assert await outcome(store.head(Key("to"))) is ObjectNotFoundError


@add_case
async def a_copy_honours_its_condition(subject: Subject) -> None:
    async with subject.store() as store:
        source = await store.put(Key("from"), b"source")
        target = await store.copy(source.key, Key("to"), etag=source.etag, condition=ABSENT)
        again = store.copy(source.key, Key("to"), etag=source.etag, condition=ABSENT)
        assert await outcome(again) is PreconditionError
        other = await store.put(Key("to"), b"other", condition=Condition(etag=target.etag))
        await store.put(Key("to"), b"newest")
        stale = store.copy(source.key, Key("to"), etag=source.etag, condition=Condition(etag=other.etag))
        assert await outcome(stale) is PreconditionError
        assert await read(store, await store.head(Key("to"))) == b"newest"
