"""Blocks of a content straight from the object that holds it: found, fetched, and proven."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio
import xxhash

from ckptfs.errors import (
    IntegrityError,
    ObjectNotFoundError,
    PreconditionError,
    StoreCorruptionError,
    StoreRejectedError,
    StoreUnavailableError,
)
from ckptfs.staging import BLOCK_BYTES, DIGEST_BYTES

if TYPE_CHECKING:
    from ckptfs.cache.fetch import FetchLimits
    from ckptfs.cache.partial import Flight, Partial
    from ckptfs.env import Env
    from ckptfs.namespace import Namespace
    from ckptfs.namespace.rows import Content
    from ckptfs.objectstore.base import ObjectStore
    from ckptfs.types import ContentId, ETag, Key

_MOVES_MAX = 20
_BYTES_PER_S_MIN = 256 * 1024

log = logging.getLogger(__name__)


class ObjectSource:
    """Fetches blocks.

    Args:
        env: clock, threads, jitter.
        store: the bucket.
        namespace: which object holds a content.
        limits: bounds.
    """

    def __init__(self, env: Env, store: ObjectStore, namespace: Namespace, limits: FetchLimits) -> None:
        self._env = env
        self._store = store
        self._namespace = namespace
        self._limits = limits

    def content(self, content_id: ContentId) -> Content:
        """The content, which must be known."""
        content = self._namespace.contents.get(content_id)
        if content is None:
            raise IntegrityError(f"content {content_id} is unknown")
        return content

    async def get(self, partial: Partial, flight: Flight, buffer: memoryview) -> bytes:
        """Fill ``buffer`` and prove it; gives the digests of its blocks."""
        offset = flight.first * BLOCK_BYTES
        for attempt in range(2):
            key = await self._get_range(partial.content, offset, buffer)
            digests = await self._env.run_blocking(_digests, buffer)
            wrong = self._wrong_block(partial, flight, digests)
            if wrong is None:
                return digests
            log.error("%r: block %d of content %s from the bucket does not match", key, wrong, partial.content)
            if attempt:
                raise IntegrityError(f"{key!r}: block {wrong} in the bucket is not what was sealed")
        raise AssertionError("unreachable")

    def _wrong_block(self, partial: Partial, flight: Flight, digests: bytes) -> int | None:
        known = self.content(partial.content).digests
        if not known:
            return None
        expected = known[flight.first * DIGEST_BYTES : (flight.first + flight.count) * DIGEST_BYTES]
        for index in range(flight.count):
            place = slice(index * DIGEST_BYTES, (index + 1) * DIGEST_BYTES)
            if digests[place] != expected[place]:
                return flight.first + index
        return None

    async def _get_range(self, content_id: ContentId, offset: int, buffer: memoryview) -> Key:
        """One range of the object that holds the content, wherever it moves; tries again while the store is away."""
        limits = self._limits
        until_s = self._env.monotonic_s() + limits.read_s
        moves = tries = 0
        while True:
            key, etag = self._source(content_id)
            try:
                with trio.fail_after(limits.request_s + len(buffer) / _BYTES_PER_S_MIN):
                    await self._store.get_range(key, offset, buffer, etag=etag or None)
            except (PreconditionError, ObjectNotFoundError, StoreRejectedError) as error:
                moves += 1
                if moves > _MOVES_MAX or self._source(content_id) == (key, etag):
                    raise IntegrityError(
                        f"{key!r}: the object was changed in the bucket after it was opened",
                        hint="open the file again",
                    ) from error
            except (StoreUnavailableError, StoreCorruptionError, trio.TooSlowError) as error:
                tries += 1
                wait_s = min(limits.retry_most_s, limits.retry_first_s * 2.0**tries) * (0.5 + self._env.random() / 2)
                if self._env.monotonic_s() + wait_s > until_s:
                    if isinstance(error, trio.TooSlowError):
                        raise StoreUnavailableError(f"read of {key!r}: no answer") from error
                    raise
                await self._env.sleep(wait_s)
            else:
                return key

    def _source(self, content_id: ContentId) -> tuple[Key, ETag]:
        """The object that holds the content now: publication moves it when files are renamed."""
        content = self.content(content_id)
        bucket = self._namespace.bucket
        key = content.key
        row = bucket.object(key) if key else None
        if row is not None and row.content == content_id:
            return key, row.etag
        if not key:
            for holder in bucket.holders(content_id):
                row = bucket.object(holder)
                if row is not None:
                    return holder, row.etag
            raise IntegrityError(f"content {content_id}: no object is known to hold it")
        return key, content.etag


def _digests(buffer: memoryview) -> bytes:
    return b"".join(
        xxhash.xxh3_128_digest(buffer[start : start + BLOCK_BYTES]) for start in range(0, len(buffer), BLOCK_BYTES)
    )
