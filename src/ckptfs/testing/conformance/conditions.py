"""Conditions, also under race."""

# ruff: noqa: D103 - the name of a case is its sentence
from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ckptfs.errors import ObjectNotFoundError, PreconditionError
from ckptfs.objectstore.base import ABSENT, Condition
from ckptfs.testing.conformance.subject import RACERS, Deviation, add_case, assert_one_won, outcome, race, read
from ckptfs.types import ETag, Key

if TYPE_CHECKING:
    from ckptfs.objectstore.base import Upload
    from ckptfs.testing.conformance.subject import Subject


@add_case
async def put_if_absent_never_replaces(subject: Subject) -> None:
    async with subject.store() as store:
        first = await store.put(Key("d/once"), b"first", condition=ABSENT)
        assert await outcome(store.put(Key("d/once"), b"other", condition=ABSENT)) is PreconditionError
        assert await read(store, first) == b"first"
        await store.delete(first.key)
        await store.put(Key("d/once"), b"again", condition=ABSENT)


@add_case
async def put_if_etag_replaces_exactly_that_generation(subject: Subject) -> None:
    async with subject.store() as store:
        key = Key("d/swap")
        nobody = Condition(etag=ETag("0123456789abcdef0123456789abcdef"))
        assert await outcome(store.put(key, b"x", condition=nobody)) is PreconditionError
        first = await store.put(key, b"first")
        second = await store.put(key, b"second", condition=Condition(etag=first.etag))
        stale = Condition(etag=first.etag)
        assert await outcome(store.put(key, b"third", condition=stale)) is PreconditionError
        assert await read(store, second) == b"second"


@add_case
async def of_racers_for_an_absent_key_exactly_one_wins(subject: Subject) -> None:
    async with subject.store() as store, subject.store() as other:
        for turn in range(4):
            key = Key(f"race/{turn}/absent")
            stores = [store, other] * (RACERS // 2)
            calls = [partial(s.put, key, b"%d" % n, condition=ABSENT) for n, s in enumerate(stores)]
            outcomes = await race(calls)
            assert_one_won(outcomes)
            assert await read(store, await store.head(key)) == b"%d" % outcomes.index(None)


@add_case
async def of_racers_for_a_generation_exactly_one_wins(subject: Subject) -> None:
    async with subject.store() as store, subject.store() as other:
        info = await store.put(Key("race/etag"), b"base")
        for _ in range(4):
            bodies = [b"%d instead of %s" % (n, info.etag.encode()) for n in range(RACERS)]
            stores = [store, other] * (RACERS // 2)
            calls = [
                partial(s.put, info.key, body, condition=Condition(etag=info.etag))
                for s, body in zip(stores, bodies, strict=True)
            ]
            outcomes = await race(calls)
            assert_one_won(outcomes)
            won = bodies[outcomes.index(None)]
            info = await store.head(info.key)
            assert await read(store, info) == won


@add_case
async def of_racing_completions_exactly_one_wins(subject: Subject) -> None:
    async with subject.store() as store:
        key = Key("race/complete")
        uploads: list[tuple[Upload, bytes]] = []
        calls = []
        for n in range(4):
            begun = await store.begin_upload(key)
            part = await store.put_part(begun, 1, b"%d" % n)
            uploads.append((begun, b"%d" % n))
            calls.append(partial(store.complete_upload, begun, [part], condition=ABSENT))
        outcomes = await race(calls)
        if Deviation.RACING_COMPLETIONS not in subject.deviations:
            assert_one_won(outcomes)
        won = [body for (_, body), kind in zip(uploads, outcomes, strict=True) if kind is None]
        assert await read(store, await store.head(key)) in won
        for begun, _ in uploads:
            await store.abort_upload(begun)
        assert list(await store.list_uploads()) == []


@add_case
async def delete_if_etag_removes_exactly_that_generation(subject: Subject) -> None:
    async with subject.store() as store:
        if not store.capabilities.conditional_delete:
            return
        old = await store.put(Key("gone"), b"old")
        new = await store.put(Key("gone"), b"new")
        assert await outcome(store.delete(old.key, condition=Condition(etag=old.etag))) is PreconditionError
        assert await read(store, new) == b"new"
        await store.delete(new.key, condition=Condition(etag=new.etag))
        assert await outcome(store.head(new.key)) is ObjectNotFoundError
        missing = await outcome(store.delete(new.key, condition=Condition(etag=new.etag)))
        assert missing is (None if Deviation.MISSING_DELETE in subject.deviations else PreconditionError)
