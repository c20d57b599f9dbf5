"""The conformance suite of object stores: what :mod:`ckptfs.objectstore.base` promises, one case per promise.

A test parametrises over :data:`CASES` and gives each case a :class:`Subject`; the same cases run over every adapter and
every wrapper, against the real thing behind it::

    @pytest.mark.parametrize("case", CASES, ids=case_name)
    def test_memory_store(case):
        bucket = MemoryBucket()
        run_case(case, Subject(open=lambda: MemoryObjectStore(RealEnv(), bucket)))

A case assumes that nothing is under the store's prefix. It never sleeps and hopes.
"""

# ruff: noqa: D103 - the name of a case is its sentence
from __future__ import annotations

import contextlib
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import trio

from ckptfs.errors import (
    ObjectNotFoundError,
    PreconditionError,
    StoreError,
    StoreRejectedError,
)
from ckptfs.objectstore.base import ABSENT, Condition
from ckptfs.types import ETag, Key

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from ckptfs.objectstore.base import Body, ObjectInfo, ObjectStore, Upload


CASE_S_MAX = 120.0
"""No case may take longer, seconds."""

RACERS = 8

ODD_KEYS: Mapping[str, str] = {
    "brackets": "odd/[a](b){c}",
    "percent": "odd/100%25%",
    "query": "odd/a?b#c&d=e+f",
    "blanks": "odd/ two  blanks ",
    "quotes": "odd/'single' \"double\" `back`",
    "markup": "odd/<a>&amp;",
    "composed": "odd/caf\u00e9",
    "decomposed": "odd/cafe\u0301",
    "beyond-bmp": "odd/\U0001f600",
    "before-surrogates": "odd/\ufb01",
    "newline": "odd/line\nbreak\rand\ttab",
    "controls": "odd/\x01\x1f\x7f",
    "backslash": "odd/a\\b",
    "dots": "odd/...",
    "dash": "-odd",
    "tilde": "~",
    "colon-star": "odd/a:*|b",
    "900-bytes": "/".join(["k" * 99] * 9),
}
"""Keys that some client, protocol or server of this field got wrong."""

REFUSABLE_KEYS: Mapping[str, str] = {
    "empty-name": "a//b",
    "dot": "a/./b",
    "dot-dot": "a/../b",
    "long-name": "n" * 256,
    "surrogate": "odd/\udcff",
    "too-long": "/".join(["k" * 100] * 12),
}
"""Keys that not every store can hold: exactly one of "refused with the right error" and "kept as it is" is allowed."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What a case is run on.

    Attributes:
        open: another store object over the same bucket and prefix.
        mangled_keys: names in :data:`ODD_KEYS` and :data:`REFUSABLE_KEYS` that the *server* of the test is known to get
            wrong, each stated with the reason where the subject is made.
        exact_missing_delete: a delete with an etag where nothing is raises; ``False``: the server returns.
    """

    open: Callable[[], ObjectStore]
    mangled_keys: frozenset[str] = field(default_factory=frozenset)
    exact_missing_delete: bool = True

    @contextlib.asynccontextmanager
    async def store(self) -> AsyncIterator[ObjectStore]:
        """A store that is closed at the end."""
        store = self.open()
        try:
            yield store
        finally:
            with trio.CancelScope(shield=True):
                await store.aclose()


Case = Callable[[Subject], Awaitable[None]]

CASES: list[Case] = []


def _case(case: Case) -> Case:
    CASES.append(case)
    return case


def case_name(case: Case) -> str:
    """Name of a case, for the id of its test."""
    return getattr(case, "__name__", repr(case)).removeprefix("case_")


def run_case(case: Case, subject: Subject) -> None:
    """Run one case to its end or its deadline."""

    async def main() -> None:
        with trio.fail_after(CASE_S_MAX):
            await case(subject)

    trio.run(main)


# ------------------------------------------------------------------------------------------------------------- helpers


async def read(store: ObjectStore, info: ObjectInfo) -> bytes:
    """Every byte of the generation ``info``."""
    buffer = bytearray(info.size)
    await store.get_range(info.key, 0, memoryview(buffer), etag=info.etag)
    return bytes(buffer)


async def list_all(
    store: ObjectStore, prefix: str = "", *, delimiter: str = "", limit: int = 1000
) -> tuple[list[ObjectInfo], list[str]]:
    """All pages of a listing in one."""
    objects: list[ObjectInfo] = []
    prefixes: list[str] = []
    token = None
    while True:
        page = await store.list_page(prefix, delimiter=delimiter, token=token, limit=limit)
        assert len(page.objects) + len(page.prefixes) <= limit
        objects += page.objects
        prefixes += page.prefixes
        token = page.next_token
        if token is None:
            return objects, prefixes


async def upload(
    store: ObjectStore, key: Key, bodies: Sequence[bytes], *, condition: Condition | None = None
) -> ObjectInfo:
    """Make an object of ``bodies`` by a multipart upload."""
    begun = await store.begin_upload(key)
    parts = [await store.put_part(begun, number, body) for number, body in enumerate(bodies, 1)]
    return await store.complete_upload(begun, parts, condition=condition or Condition())


async def outcome(call: Awaitable[object]) -> type[StoreError] | None:
    """The kind of store error that ``call`` raised, or ``None``."""
    try:
        await call
    except StoreError as e:
        return type(e)
    return None


async def race(calls: Sequence[Callable[[], Awaitable[object]]]) -> list[type[StoreError] | None]:
    """Outcomes of all ``calls``, made at the same time."""
    outcomes: list[type[StoreError] | None] = [None] * len(calls)

    async def run(position: int, call: Callable[[], Awaitable[object]]) -> None:
        outcomes[position] = await outcome(call())

    async with trio.open_nursery() as nursery:
        for position, call in enumerate(calls):
            nursery.start_soon(run, position, call)
    return outcomes


def assert_one_won(outcomes: Sequence[type[StoreError] | None]) -> None:
    """Of racers one got through, and every other was told that its condition did not hold."""
    assert outcomes.count(None) == 1, outcomes
    assert outcomes.count(PreconditionError) == len(outcomes) - 1, outcomes


def part_bytes(store: ObjectStore) -> int:
    """A part size that the store takes for every part, and that is not a round number of pages."""
    return max(store.capabilities.part_bytes_min, 64 << 10) + 1


def pattern(size: int, seed: int = 0) -> bytes:
    """``size`` bytes in which every position can be told from its neighbours."""
    block = bytes((i * 7 + i // 256 + seed) % 251 for i in range(4096 + 1))
    return (block * (size // len(block) + 1))[:size]


# ----------------------------------------------------------------------------------------------------- put, head, read


@_case
async def case_probe_returns_for_a_bucket_that_is_there(subject: Subject) -> None:
    async with subject.store() as store:
        await store.probe()


@_case
async def case_an_object_is_read_back_at_every_size(subject: Subject) -> None:
    async with subject.store() as store:
        part = part_bytes(store)
        for size in (0, 1, 4095, 4096, part - 1, part, part + 1):
            body = pattern(size, seed=size)
            put = await store.put(Key(f"size/{size}"), body)
            assert (put.key, put.size) == (f"size/{size}", size)
            head = await store.head(put.key)
            assert (head.size, head.etag) == (size, put.etag)
            assert await read(store, head) == body


@_case
async def case_every_kind_of_buffer_is_taken(subject: Subject) -> None:
    async with subject.store() as store:
        body = pattern(100_001)
        whole = memoryview(bytearray(b"xx" + body + b"xx"))
        buffers: dict[str, Body] = {"bytes": body, "bytearray": bytearray(body), "memoryview": whole[2:-2]}
        for name, buffer in buffers.items():
            info = await store.put(Key(name), buffer)
            assert await read(store, info) == body


@_case
async def case_what_is_not_there_is_not_found(subject: Subject) -> None:
    async with subject.store() as store:
        await store.put(Key("there/a"), b"a")
        for key in (Key("none"), Key("there"), Key("there/a/b"), Key("there/")):
            assert await outcome(store.head(key)) is ObjectNotFoundError, key
            assert await outcome(store.get_range(key, 0, memoryview(bytearray(1)))) is ObjectNotFoundError, key


@_case
async def case_a_range_is_filled_exactly(subject: Subject) -> None:
    async with subject.store() as store:
        body = pattern(300_000)
        info = await store.put(Key("ranges"), body)
        for offset, length in ((0, 0), (0, 1), (1, 1), (0, 300_000), (4095, 4098), (299_999, 1), (300_000, 0)):
            buffer = bytearray(b"\xee" * (length + 2))
            await store.get_range(info.key, offset, memoryview(buffer)[1:-1], etag=info.etag)
            assert bytes(buffer) == b"\xee" + body[offset : offset + length] + b"\xee", (offset, length)


@_case
async def case_a_range_past_the_end_is_rejected(subject: Subject) -> None:
    async with subject.store() as store:
        info = await store.put(Key("short"), pattern(1000))
        for offset, length in ((1000, 1), (999, 2), (0, 1001), (5000, 10), (1001, 0)):
            call = store.get_range(info.key, offset, memoryview(bytearray(length)), etag=info.etag)
            assert await outcome(call) is StoreRejectedError, (offset, length)


@_case
async def case_a_read_is_of_one_generation(subject: Subject) -> None:
    async with subject.store() as store:
        old = await store.put(Key("replaced"), b"old old")
        new = await store.put(Key("replaced"), b"new new")
        assert old.etag != new.etag
        for length in (7, 0):
            call = store.get_range(old.key, 0, memoryview(bytearray(length)), etag=old.etag)
            assert await outcome(call) is PreconditionError
        assert await read(store, new) == b"new new"


@_case
async def case_a_reader_beside_writers_sees_whole_generations_only(subject: Subject) -> None:
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


@_case
async def case_the_last_put_stands_and_every_generation_has_its_etag(subject: Subject) -> None:
    async with subject.store() as store:
        etags = set()
        for value in range(24):
            # Same length, as fast as it goes: neither a size nor a coarse clock can tell them apart.
            info = await store.put(Key("again"), bytes([value]) * 16)
            assert (await store.head(info.key)).etag == info.etag
            etags.add(info.etag)
        assert len(etags) == 24
        assert await read(store, await store.head(Key("again"))) == bytes([23]) * 16


@_case
async def case_an_etag_is_the_same_for_all_who_look(subject: Subject) -> None:
    async with subject.store() as store, subject.store() as other:
        info = await store.put(Key("seen"), b"seen")
        assert (await other.head(info.key)).etag == info.etag
        objects, _ = await list_all(other)
        assert [(o.key, o.etag, o.size) for o in objects] == [(info.key, info.etag, 4)]


@_case
async def case_metadata_makes_the_round_trip(subject: Subject) -> None:
    metadata = {"plain": "value", "with-dash": "a b=c;d,e/f", "empty": "", "json": '{"mode": 33188}', "n1": "x" * 500}
    async with subject.store() as store:
        put = await store.put(Key("put"), b"x", metadata=metadata)
        assert put.metadata == metadata
        assert (await store.head(Key("put"))).metadata == metadata
        begun = await store.begin_upload(Key("parts"), metadata=metadata)
        done = await store.complete_upload(begun, [await store.put_part(begun, 1, b"x")])
        assert (await store.head(done.key)).metadata == metadata
        replaced = await store.put(Key("put"), b"x")
        assert (await store.head(replaced.key)).metadata == {}


@_case
async def case_metadata_that_would_not_survive_is_rejected(subject: Subject) -> None:
    async with subject.store() as store:
        for metadata in ({"Upper": "x"}, {"a": "caf\u00e9"}, {"a": " x"}, {"a": "x\ny"}, {"": "x"}, {"a": "x" * 2048}):
            assert await outcome(store.put(Key("odd"), b"", metadata=metadata)) is StoreRejectedError, metadata
        assert await outcome(store.head(Key("odd"))) is ObjectNotFoundError


@_case
async def case_the_time_of_an_object_is_near_now(subject: Subject) -> None:
    async with subject.store() as store:
        first = await store.put(Key("a"), b"")
        later = await store.put(Key("b"), b"")
        assert first.mtime_ns <= later.mtime_ns + 2_000_000_000
        head = await store.head(Key("a"))
        assert abs(head.mtime_ns - first.mtime_ns) <= 2_000_000_000


# ---------------------------------------------------------------------------------------------------------------- keys


@_case
async def case_odd_keys_are_kept_as_they_are(subject: Subject) -> None:
    keys = [Key(key) for name, key in ODD_KEYS.items() if name not in subject.mangled_keys]
    async with subject.store() as store:
        for key in keys:
            await store.put(key, key.encode())
        for key in keys:
            assert await read(store, await store.head(key)) == key.encode(), key
        objects, _ = await list_all(store, limit=3)
        assert [info.key for info in objects] == sorted(keys, key=str.encode)
        for key in keys:
            alone, _ = await list_all(store, key)
            assert [info.key for info in alone] == [key]
            await store.copy(key, Key(f"copied/{key}"), etag=alone[0].etag)
            assert (await store.head(Key(f"copied/{key}"))).size == len(key.encode())
            await store.delete(key)
        objects, _ = await list_all(store)
        assert {info.key for info in objects} == {f"copied/{key}" for key in keys}


@_case
async def case_odd_keys_work_in_uploads(subject: Subject) -> None:
    async with subject.store() as store:
        for name in ("brackets", "query", "blanks", "composed", "newline"):
            if name in subject.mangled_keys:
                continue
            key = Key(ODD_KEYS[name])
            begun = await store.begin_upload(key)
            assert [u.key for u in await store.list_uploads()] == [key]
            part = await store.put_part(begun, 1, b"x")
            assert (await store.complete_upload(begun, [part])).key == key
            assert await read(store, await store.head(key)) == b"x"


@_case
async def case_a_key_is_kept_or_refused_but_never_changed(subject: Subject) -> None:
    async with subject.store() as store:
        kept = []
        for name, text in REFUSABLE_KEYS.items():
            if name in subject.mangled_keys:
                continue
            key = Key(text)
            refused = await outcome(store.put(key, b"x"))
            assert refused in {None, StoreRejectedError}, (name, refused)
            if refused is None:
                kept.append(key)
                assert await read(store, await store.head(key)) == b"x"
                continue
            assert await outcome(store.head(key)) in {ObjectNotFoundError, StoreRejectedError}, name
            assert await outcome(store.begin_upload(key)) is StoreRejectedError, name
            assert await outcome(store.delete(key)) in {None, StoreRejectedError}, name
        objects, _ = await list_all(store)
        assert {info.key for info in objects} == set(kept)


@_case
async def case_an_object_under_an_object_is_kept_or_refused(subject: Subject) -> None:
    async with subject.store() as store:
        for first, second in (("a", "a/b"), ("c/d", "c")):
            await store.put(Key(first), b"1")
            refused = await outcome(store.put(Key(second), b"22"))
            assert refused in {None, StoreRejectedError}
            assert await read(store, await store.head(Key(first))) == b"1"
            if refused is None:
                assert await read(store, await store.head(Key(second))) == b"22"
            else:
                assert await outcome(store.head(Key(second))) is ObjectNotFoundError


# ---------------------------------------------------------------------------------------------------------- conditions


@_case
async def case_put_if_absent_never_replaces(subject: Subject) -> None:
    async with subject.store() as store:
        first = await store.put(Key("d/once"), b"first", condition=ABSENT)
        assert await outcome(store.put(Key("d/once"), b"other", condition=ABSENT)) is PreconditionError
        assert await read(store, first) == b"first"
        await store.delete(first.key)
        await store.put(Key("d/once"), b"again", condition=ABSENT)


@_case
async def case_put_if_etag_replaces_exactly_that_generation(subject: Subject) -> None:
    async with subject.store() as store:
        key = Key("d/swap")
        nobody = Condition(etag=ETag("0123456789abcdef0123456789abcdef"))
        assert await outcome(store.put(key, b"x", condition=nobody)) is PreconditionError
        first = await store.put(key, b"first")
        second = await store.put(key, b"second", condition=Condition(etag=first.etag))
        stale = Condition(etag=first.etag)
        assert await outcome(store.put(key, b"third", condition=stale)) is PreconditionError
        assert await read(store, second) == b"second"


@_case
async def case_of_racers_for_an_absent_key_exactly_one_wins(subject: Subject) -> None:
    async with subject.store() as store, subject.store() as other:
        for turn in range(4):
            key = Key(f"race/{turn}/absent")
            stores = [store, other] * (RACERS // 2)
            calls = [partial(s.put, key, b"%d" % n, condition=ABSENT) for n, s in enumerate(stores)]
            outcomes = await race(calls)
            assert_one_won(outcomes)
            assert await read(store, await store.head(key)) == b"%d" % outcomes.index(None)


@_case
async def case_of_racers_for_a_generation_exactly_one_wins(subject: Subject) -> None:
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


@_case
async def case_of_racing_completions_exactly_one_wins(subject: Subject) -> None:
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
        assert_one_won(outcomes)
        assert await read(store, await store.head(key)) == uploads[outcomes.index(None)][1]
        for begun, _ in uploads:
            await store.abort_upload(begun)
        assert list(await store.list_uploads()) == []


@_case
async def case_delete_if_etag_removes_exactly_that_generation(subject: Subject) -> None:
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
        assert missing is (PreconditionError if subject.exact_missing_delete else None)


# -------------------------------------------------------------------------------------------------------------- delete


@_case
async def case_delete_removes_and_may_be_repeated(subject: Subject) -> None:
    async with subject.store() as store:
        await store.put(Key("d/e/f"), b"x")
        await store.put(Key("d/g"), b"y")
        await store.delete(Key("d/e/f"))
        await store.delete(Key("d/e/f"))
        await store.delete(Key("never/was"))
        objects, prefixes = await list_all(store, "d/", delimiter="/")
        assert [info.key for info in objects] == ["d/g"]
        assert prefixes == [], "a prefix without objects is not there"


@_case
async def case_puts_and_deletes_beside_each_other_lose_nothing(subject: Subject) -> None:
    async with subject.store() as store:

        async def churn(name: str) -> None:
            for turn in range(12):
                info = await store.put(Key(f"churn/deep/er/{name}"), b"%d" % turn)
                assert await read(store, info) == b"%d" % turn
                await store.delete(info.key)
            await store.put(Key(f"churn/deep/er/{name}"), b"end")

        async with trio.open_nursery() as nursery:
            for name in "abcd":
                nursery.start_soon(churn, name)
        objects, _ = await list_all(store)
        assert [info.key for info in objects] == [f"churn/deep/er/{name}" for name in "abcd"]


# ------------------------------------------------------------------------------------------------------------- uploads


@_case
async def case_an_upload_is_visible_only_when_complete(subject: Subject) -> None:
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


@_case
async def case_ranges_across_parts_are_exact(subject: Subject) -> None:
    async with subject.store() as store:
        size = part_bytes(store)
        whole = pattern(size, 1) + pattern(size, 2) + pattern(100, 3)
        info = await upload(store, Key("parts"), [whole[:size], whole[size : 2 * size], whole[2 * size :]])
        for offset in (0, size - 1, size, size + 1, 2 * size - 50, len(whole) - 100):
            buffer = bytearray(100)
            await store.get_range(info.key, offset, memoryview(buffer), etag=info.etag)
            assert bytes(buffer) == whole[offset : offset + 100]


@_case
async def case_a_part_sent_again_replaces_the_earlier(subject: Subject) -> None:
    async with subject.store() as store:
        begun = await store.begin_upload(Key("twice"))
        await store.put_part(begun, 1, b"wrong")
        part = await store.put_part(begun, 1, b"right")
        assert await read(store, await store.complete_upload(begun, [part])) == b"right"


@_case
async def case_only_the_parts_named_are_in_the_object(subject: Subject) -> None:
    async with subject.store() as store:
        begun = await store.begin_upload(Key("some"))
        size = part_bytes(store)
        first = await store.put_part(begun, 1, pattern(size))
        await store.put_part(begun, 2, b"left out")
        last = await store.put_part(begun, 7, b"end")
        assert await read(store, await store.complete_upload(begun, [last, first])) == pattern(size) + b"end"


@_case
async def case_an_empty_object_can_be_one_empty_part(subject: Subject) -> None:
    async with subject.store() as store:
        info = await upload(store, Key("nothing"), [b""])
        assert info.size == 0
        assert await read(store, await store.head(info.key)) == b""


@_case
async def case_completion_honours_its_condition(subject: Subject) -> None:
    async with subject.store() as store:
        key = Key("cond")
        first = await upload(store, key, [b"first"], condition=ABSENT)
        assert await outcome(upload(store, key, [b"no"], condition=ABSENT)) is PreconditionError
        second = await upload(store, key, [b"second"], condition=Condition(etag=first.etag))
        assert await outcome(upload(store, key, [b"no"], condition=Condition(etag=first.etag))) is PreconditionError
        assert await read(store, second) == b"second"
        for left in await store.list_uploads():
            await store.abort_upload(left)


@_case
async def case_wrong_parts_are_rejected_and_nothing_is_visible(subject: Subject) -> None:
    async with subject.store() as store:
        begun = await store.begin_upload(Key("wrong"))
        part = await store.put_part(begun, 1, b"one")
        assert await outcome(store.complete_upload(begun, [])) is StoreRejectedError
        forged = type(part)(2, part.etag, part.size, part.checksum)
        assert await outcome(store.complete_upload(begun, [part, forged])) is StoreRejectedError
        assert await outcome(store.head(begun.key)) is ObjectNotFoundError
        await store.abort_upload(begun)


@_case
async def case_abort_leaves_nothing(subject: Subject) -> None:
    async with subject.store() as store:
        begun = await store.begin_upload(Key("aborted"))
        part = await store.put_part(begun, 1, pattern(1000))
        await store.abort_upload(begun)
        await store.abort_upload(begun)
        assert list(await store.list_uploads()) == []
        assert await outcome(store.put_part(begun, 2, b"x")) is ObjectNotFoundError
        assert await outcome(store.complete_upload(begun, [part])) is ObjectNotFoundError
        assert (await list_all(store))[0] == []


@_case
async def case_an_upload_is_continued_by_another_process(subject: Subject) -> None:
    async with subject.store() as store, subject.store() as other:
        size = part_bytes(store)
        begun = await store.begin_upload(Key("resumed"))
        parts = [await store.put_part(begun, 1, pattern(size))]
        parts.append(await other.put_part(begun, 2, b"tail"))
        assert await read(other, await other.complete_upload(begun, parts)) == pattern(size) + b"tail"


# ------------------------------------------------------------------------------------------------------------ listings

_TREE = ["a", "a-b", "a.b/c", "a/b", "a/b/c", "a/bb", "a0", "ab/c/d", "ab/c/e", "b/x", "b/y/z", "z"]


def _holdable(store: ObjectStore, keys: Sequence[str]) -> list[str]:
    """``keys`` without those that are also a directory, for stores that cannot hold both."""
    if not store.url.startswith("file:"):
        return list(keys)
    return [key for key in keys if not any(other.startswith(f"{key}/") for other in keys)]


@_case
async def case_listing_is_in_utf8_order_of_whole_keys(subject: Subject) -> None:
    async with subject.store() as store:
        keys = sorted(_holdable(store, _TREE), key=str.encode)
        for key in reversed(keys):
            await store.put(Key(key), b"x")
        for limit in (1, 2, 3, 1000):
            for prefix in ("", "a", "a/", "a/b", "ab/c/", "b/y", "z", "nothing"):
                objects, prefixes = await list_all(store, prefix, limit=limit)
                expected = [key for key in keys if key.startswith(prefix)]
                assert [info.key for info in objects] == expected, (prefix, limit)
                assert prefixes == []


@_case
async def case_a_delimiter_groups_what_is_below(subject: Subject) -> None:
    async with subject.store() as store:
        keys = sorted(_holdable(store, _TREE), key=str.encode)
        for key in keys:
            await store.put(Key(key), b"x")
        for limit in (1, 2, 1000):
            for prefix in ("", "a", "a/", "a/b", "ab/", "ab/c/", "b/y", "nothing/"):
                rests = [key[len(prefix) :] for key in keys if key.startswith(prefix)]
                expected = {prefix + rest.partition("/")[0] + "/" for rest in rests if "/" in rest}
                objects, prefixes = await list_all(store, prefix, delimiter="/", limit=limit)
                assert [info.key for info in objects] == [prefix + rest for rest in rests if "/" not in rest]
                assert prefixes == sorted(expected, key=str.encode), (prefix, limit)


@_case
async def case_what_stays_is_listed_once_while_others_come_and_go(subject: Subject) -> None:
    async with subject.store() as store:
        stay = [f"list/{n:03d}" for n in range(0, 60, 2)]
        for key in stay:
            await store.put(Key(key), b"x")
        for delimiter in ("", "/"):
            seen: list[str] = []
            token = None
            for turn in range(1000):
                page = await store.list_page("list/", delimiter=delimiter, token=token, limit=7)
                seen += [info.key for info in page.objects]
                token = page.next_token
                if token is None:
                    break
                await store.put(Key(f"list/{(turn * 14 + 1) % 60:03d}"), b"new")
                await store.put(Key(stay[turn % len(stay)]), b"replaced")
                await store.delete(Key(f"list/{(turn * 28 + 1) % 60:03d}"))
            assert len(seen) == len(set(seen)), "listed twice"
            assert set(stay) <= set(seen), "left out"
            assert seen == sorted(seen)


@_case
async def case_a_page_can_be_asked_for_again(subject: Subject) -> None:
    async with subject.store() as store:
        for n in range(10):
            await store.put(Key(f"p/{n}"), b"x")
        first = await store.list_page("p/", limit=4)
        for _ in range(3):
            again = await store.list_page("p/", token=first.next_token, limit=4)
            assert [info.key for info in again.objects] == [f"p/{n}" for n in range(4, 8)]


# ---------------------------------------------------------------------------------------------------------------- copy


@_case
async def case_a_copy_is_the_same_bytes(subject: Subject) -> None:
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


@_case
async def case_a_copy_is_of_the_generation_asked_for(subject: Subject) -> None:
    async with subject.store() as store:
        missing = await outcome(store.copy(Key("none"), Key("to"), etag=ETag("0" * 32)))
        assert missing is ObjectNotFoundError
        old = await store.put(Key("from"), b"old")
        await store.put(Key("from"), b"new")
        assert await outcome(store.copy(old.key, Key("to"), etag=old.etag)) is PreconditionError
        assert await outcome(store.head(Key("to"))) is ObjectNotFoundError


@_case
async def case_a_copy_honours_its_condition(subject: Subject) -> None:
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


# ------------------------------------------------------------------------------------------------- closing, cancelling


@_case
async def case_calls_after_close_are_refused(subject: Subject) -> None:
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


@_case
async def case_a_cancelled_put_leaves_old_or_new_and_a_usable_store(subject: Subject) -> None:
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


@_case
async def case_many_calls_at_once_all_come_back_right(subject: Subject) -> None:
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


def unique_prefix() -> str:
    """A prefix nobody has used, for subjects that share a bucket."""
    return f"t{os.urandom(6).hex()}"
