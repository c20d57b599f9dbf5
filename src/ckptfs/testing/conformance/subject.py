"""What a case is run on, how it is run, and the helpers of all cases."""

from __future__ import annotations

import contextlib
import enum
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import trio

from ckptfs.errors import (
    PreconditionError,
    StoreError,
)
from ckptfs.objectstore.base import Condition

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from ckptfs.objectstore.base import ObjectInfo, ObjectStore
    from ckptfs.types import Key


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
    "slash-first": "/a",
    "dot": "a/./b",
    "dot-dot": "a/../b",
    "long-name": "n" * 256,
    "surrogate": "odd/\udcff",
    "too-long": "/".join(["k" * 100] * 12),
}
"""Keys that not every store can hold: exactly one of "refused with the right error" and "kept as it is" is allowed."""


class Deviation(enum.Enum):
    """What a *server* is known to do other than Amazon S3. A case then demands only what still holds."""

    DIRECTORY_OBJECTS = "a key with a slash at its end is found where only objects below it are"
    EMPTY_PREFIXES = "a common prefix stays when its last object is gone"
    TREE_ORDER = "keys are listed in the order of a directory tree, not of UTF-8"
    LONG_PAGES = "a page has more entries than were asked for"
    MISSING_DELETE = "a delete with an etag returns where no object is"
    RACING_COMPLETIONS = "of conditional completions at the same time several succeed"
    UPLOAD_ENCODING = "keys of uploads are listed without the encoding that was asked for and claimed"
    UPLOAD_KEYS_UNCHECKED = "an upload is begun for a key that no object can have"


@dataclass(frozen=True, slots=True)
class Subject:
    """What a case is run on.

    Attributes:
        open: another store object over the same bucket and prefix.
        mangled_keys: names in :data:`ODD_KEYS` and :data:`REFUSABLE_KEYS` that the *server* of the test is known to get
            wrong, each stated with the reason where the subject is made.
        deviations: what else it is known to get wrong.
    """

    open: Callable[[], ObjectStore]
    mangled_keys: frozenset[str] = field(default_factory=frozenset)
    deviations: frozenset[Deviation] = frozenset()

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


def add_case(case: Case) -> Case:
    """Decorator: take ``case`` into the suite."""
    CASES.append(case)
    return case


def case_name(case: Case) -> str:
    """Name of a case, for the id of its test."""
    return getattr(case, "__name__", repr(case))


def run_case(case: Case, subject: Subject) -> None:
    """Run one case to its end or its deadline."""

    async def main() -> None:
        with trio.fail_after(CASE_S_MAX):
            await case(subject)

    trio.run(main)


async def read(store: ObjectStore, info: ObjectInfo) -> bytes:
    """Every byte of the generation ``info``."""
    buffer = bytearray(info.size)
    await store.get_range(info.key, 0, memoryview(buffer), etag=info.etag)
    return bytes(buffer)


async def list_all(
    store: ObjectStore, prefix: str = "", *, delimiter: str = "", limit: int = 1000, slack: int = 0
) -> tuple[list[ObjectInfo], list[str]]:
    """All pages of a listing in one; each at most ``slack`` entries longer than ``limit``."""
    objects: list[ObjectInfo] = []
    prefixes: list[str] = []
    token = None
    while True:
        page = await store.list_page(prefix, delimiter=delimiter, token=token, limit=limit)
        assert len(page.objects) + len(page.prefixes) <= limit + slack
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


def unique_prefix() -> str:
    """A prefix nobody has used, for subjects that share a bucket."""
    return f"t{os.urandom(6).hex()}"
