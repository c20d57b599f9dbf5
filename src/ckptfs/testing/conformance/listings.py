"""Listings, and what deletes do to them."""

# ruff: noqa: D103 - the name of a case is its sentence
from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from ckptfs.testing.conformance.subject import Deviation, add_case, list_all, read
from ckptfs.types import Key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ckptfs.objectstore.base import ObjectStore
    from ckptfs.testing.conformance.subject import Subject


_TREE = ["a", "a-b", "a.b/c", "a/b", "a/b/c", "a/bb", "a0", "ab/c/d", "ab/c/e", "b/x", "b/y/z", "z"]


def _holdable(store: ObjectStore, keys: Sequence[str]) -> list[str]:
    """``keys`` without those that are also a directory, for stores that cannot hold both."""
    if not store.url.startswith("file:"):
        return list(keys)
    return [key for key in keys if not any(other.startswith(f"{key}/") for other in keys)]


@add_case
async def listing_is_in_utf8_order_of_whole_keys(subject: Subject) -> None:
    async with subject.store() as store:
        keys = sorted(_holdable(store, _TREE), key=str.encode)
        for key in reversed(keys):
            await store.put(Key(key), b"x")
        for limit in (1, 2, 3, 1000):
            for prefix in ("", "a", "a/", "a/b", "ab/c/", "b/y", "z", "nothing"):
                objects, prefixes = await list_all(store, prefix, limit=limit)
                expected = [key for key in keys if key.startswith(prefix)]
                found = [info.key for info in objects]
                assert sorted(found, key=str.encode) == expected, (prefix, limit)
                assert found == expected or Deviation.TREE_ORDER in subject.deviations
                assert prefixes == []


@add_case
async def a_delimiter_groups_what_is_below(subject: Subject) -> None:
    async with subject.store() as store:
        keys = sorted(_holdable(store, _TREE), key=str.encode)
        for key in keys:
            await store.put(Key(key), b"x")
        for limit in (1, 2, 1000):
            for prefix in ("", "a", "a/", "a/b", "ab/", "ab/c/", "b/y", "nothing/"):
                rests = [key[len(prefix) :] for key in keys if key.startswith(prefix)]
                expected = {prefix + rest.partition("/")[0] + "/" for rest in rests if "/" in rest}
                slack = int(Deviation.LONG_PAGES in subject.deviations)
                objects, prefixes = await list_all(store, prefix, delimiter="/", limit=limit, slack=slack)
                assert [info.key for info in objects] == [prefix + rest for rest in rests if "/" not in rest]
                if Deviation.TREE_ORDER in subject.deviations:
                    prefixes.sort(key=str.encode)
                assert prefixes == sorted(expected, key=str.encode), (prefix, limit)


@add_case
async def what_stays_is_listed_once_while_others_come_and_go(subject: Subject) -> None:
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


@add_case
async def a_page_can_be_asked_for_again(subject: Subject) -> None:
    async with subject.store() as store:
        for n in range(10):
            await store.put(Key(f"p/{n}"), b"x")
        first = await store.list_page("p/", limit=4)
        for _ in range(3):
            again = await store.list_page("p/", token=first.next_token, limit=4)
            assert [info.key for info in again.objects] == [f"p/{n}" for n in range(4, 8)]


@add_case
async def delete_removes_and_may_be_repeated(subject: Subject) -> None:
    async with subject.store() as store:
        await store.put(Key("d/e/f"), b"x")
        await store.put(Key("d/g"), b"y")
        await store.delete(Key("d/e/f"))
        await store.delete(Key("d/e/f"))
        await store.delete(Key("never/was"))
        objects, prefixes = await list_all(store, "d/", delimiter="/")
        assert [info.key for info in objects] == ["d/g"]
        if Deviation.EMPTY_PREFIXES not in subject.deviations:
            assert prefixes == [], "a prefix without objects is not there"


@add_case
async def puts_and_deletes_beside_each_other_lose_nothing(subject: Subject) -> None:
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
