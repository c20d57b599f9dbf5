"""Whether an object has bytes that are known: for one that says nothing about itself. Costs a read of all of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import xxhash

from ckptfs.errors import ObjectNotFoundError, PreconditionError
from ckptfs.publish.upload import deadline
from ckptfs.staging import BLOCK_BYTES

if TYPE_CHECKING:
    from ckptfs.objectstore.base import ObjectInfo, ObjectStore
    from ckptfs.publish.plan import Source
    from ckptfs.publish.upload import Uploader

_STEP_BYTES = 4 * BLOCK_BYTES


async def has_digests(store: ObjectStore, uploader: Uploader, info: ObjectInfo, digests: bytes) -> bool:
    """Whether the blocks of an object have exactly these digests. ``False`` too when it changes meanwhile."""
    found = bytearray()
    buffer = bytearray(min(info.size, _STEP_BYTES))
    taken = await uploader.budget.acquire(len(buffer))
    try:
        for offset in range(0, info.size, _STEP_BYTES):
            view = memoryview(buffer)[: info.size - offset]
            with deadline(uploader.request_s(len(view)), f"read of {info.key!r}"):
                await store.get_range(info.key, offset, view, etag=info.etag)
            for start in range(0, len(view), BLOCK_BYTES):
                found += xxhash.xxh3_128_digest(view[start : start + BLOCK_BYTES])
            if not digests.startswith(found):
                return False
    except (PreconditionError, ObjectNotFoundError):
        return False
    finally:
        uploader.budget.release(taken)
    return bytes(found) == digests


async def is_copy(store: ObjectStore, uploader: Uploader, info: ObjectInfo, source: Source) -> bool:
    """Whether an object has exactly the bytes of another one of its size. ``False`` too when one changes meanwhile."""
    length = min(info.size, _STEP_BYTES)
    taken = await uploader.budget.acquire(2 * length)
    try:
        ours, theirs = bytearray(length), bytearray(length)
        for offset in range(0, info.size, _STEP_BYTES):
            size = min(length, info.size - offset)
            with deadline(uploader.request_s(2 * size), f"read of {info.key!r}"):
                await store.get_range(info.key, offset, memoryview(theirs)[:size], etag=info.etag)
                await store.get_range(source.key, offset, memoryview(ours)[:size], etag=source.etag)
            if ours[:size] != theirs[:size]:
                return False
    except (PreconditionError, ObjectNotFoundError):
        return False
    finally:
        uploader.budget.release(taken)
    return True
