"""Keys that some client, protocol or server gets wrong."""

# ruff: noqa: D103 - the name of a case is its sentence
from __future__ import annotations

from typing import TYPE_CHECKING

from ckptfs.errors import ObjectNotFoundError, StoreRejectedError
from ckptfs.testing.conformance.subject import ODD_KEYS, REFUSABLE_KEYS, Deviation, add_case, list_all, outcome, read
from ckptfs.types import Key

if TYPE_CHECKING:
    from ckptfs.testing.conformance.subject import Subject


@add_case
async def odd_keys_are_kept_as_they_are(subject: Subject) -> None:
    keys = [Key(key) for name, key in ODD_KEYS.items() if name not in subject.mangled_keys]
    async with subject.store() as store:
        for key in keys:
            await store.put(key, key.encode())
        for key in keys:
            assert await read(store, await store.head(key)) == key.encode(), key
        objects, _ = await list_all(store, limit=3)
        assert sorted(info.key for info in objects) == sorted(keys), ascii([info.key for info in objects])
        if Deviation.TREE_ORDER not in subject.deviations:
            assert [info.key for info in objects] == sorted(keys, key=str.encode)
        for key in keys:
            alone, _ = await list_all(store, key)
            assert [info.key for info in alone] == [key]
            await store.copy(key, Key(f"copied/{key}"), etag=alone[0].etag)
            assert (await store.head(Key(f"copied/{key}"))).size == len(key.encode())
            await store.delete(key)
        objects, _ = await list_all(store)
        assert {info.key for info in objects} == {f"copied/{key}" for key in keys}


@add_case
async def odd_keys_work_in_uploads(subject: Subject) -> None:
    async with subject.store() as store:
        for name in ("brackets", "query", "blanks", "composed", "newline"):
            if name in subject.mangled_keys:
                continue
            key = Key(ODD_KEYS[name])
            begun = await store.begin_upload(key)
            if Deviation.UPLOAD_ENCODING not in subject.deviations:
                assert [u.key for u in await store.list_uploads()] == [key]
            part = await store.put_part(begun, 1, b"x")
            assert (await store.complete_upload(begun, [part])).key == key
            assert await read(store, await store.head(key)) == b"x"


@add_case
async def a_key_is_kept_or_refused_but_never_changed(subject: Subject) -> None:
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
            if Deviation.UPLOAD_KEYS_UNCHECKED not in subject.deviations:
                assert await outcome(store.begin_upload(key)) is StoreRejectedError, name
            assert await outcome(store.delete(key)) in {None, StoreRejectedError}, name
        objects, _ = await list_all(store)
        assert {info.key for info in objects} == set(kept)


@add_case
async def an_object_under_an_object_is_kept_or_refused(subject: Subject) -> None:
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
