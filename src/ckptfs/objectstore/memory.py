"""An object store in memory: a full implementation of the port, for tests and simulation, never a mock of calls.

A :class:`MemoryBucket` holds the state; any number of :class:`MemoryObjectStore` (two mounts, a publisher and a test
that looks on) share it. No call blocks, each is one checkpoint, and between that checkpoint and its return nothing
interleaves.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import trio

from ckptfs.errors import ObjectNotFoundError, PreconditionError, StoreRejectedError
from ckptfs.objectstore.base import ANY, Capabilities, Condition, ListPage, ObjectInfo, Part, Upload
from ckptfs.objectstore.checks import (
    check_body,
    check_key,
    check_list_arguments,
    check_metadata,
    check_parts,
    check_range,
    is_text,
    key_utf8,
)
from ckptfs.types import ETag, Key

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ckptfs.env import Env
    from ckptfs.objectstore.base import Body

_CAPABILITIES = Capabilities(
    part_bytes_min=1,
    part_bytes_max=5 << 30,
    part_count_max=10_000,
    object_bytes_max=5 << 40,
    key_bytes_max=1024,
    conditional_put=True,
    conditional_delete=True,
    checksums=False,
)


@dataclass(slots=True)
class _Pending:
    """A multipart upload that was begun."""

    upload: Upload
    metadata: Mapping[str, str]
    parts: dict[int, tuple[Part, bytes]] = field(default_factory=dict)


class MemoryBucket:
    """The state of one bucket. Plain and synchronous: every method is atomic on the event loop."""

    def __init__(self) -> None:
        self._objects: dict[Key, tuple[ObjectInfo, bytes]] = {}
        self._order: list[bytes] = []
        self._uploads: dict[str, _Pending] = {}
        self._generation = 0

    def next_name(self) -> str:
        """A name this bucket never gave before."""
        self._generation += 1
        return f"{self._generation:x}"

    def find(self, key: Key) -> tuple[ObjectInfo, bytes]:
        """The newest generation of ``key`` and its bytes."""
        found = self._objects.get(key)
        if found is None:
            raise ObjectNotFoundError(f"no object {key!r}")
        return found

    def store(self, info: ObjectInfo, body: bytes, condition: Condition) -> None:
        """Make ``info`` the newest generation of its key if ``condition`` holds."""
        self.check(info.key, condition)
        if info.key not in self._objects:
            bisect.insort(self._order, info.key.encode())
        self._objects[info.key] = (info, body)

    def remove(self, key: Key) -> None:
        """Remove ``key`` if it is there."""
        if self._objects.pop(key, None) is not None:
            del self._order[bisect.bisect_left(self._order, key.encode())]

    def check(self, key: Key, condition: Condition) -> None:
        """Raise :class:`PreconditionError` if ``condition`` does not hold for ``key``."""
        found = self._objects.get(key)
        if condition.absent and found is not None:
            raise PreconditionError(f"{key!r} is already there")
        if condition.etag is not None and (found is None or found[0].etag != condition.etag):
            raise PreconditionError(f"{key!r} is not the generation {condition.etag!r}")

    def keys_from(self, first: bytes) -> Iterator[Key]:
        """Keys from ``first`` on, in UTF-8 order."""
        for position in range(bisect.bisect_left(self._order, first), len(self._order)):
            yield Key(self._order[position].decode())

    def begin(self, upload: Upload, metadata: Mapping[str, str]) -> None:
        """Remember a new upload."""
        self._uploads[upload.upload_id] = _Pending(upload, metadata)

    def pending(self, upload: Upload) -> _Pending:
        """The upload, if it was neither completed nor aborted."""
        found = self._uploads.get(upload.upload_id)
        if found is None or found.upload.key != upload.key:
            raise ObjectNotFoundError(f"no upload {upload.upload_id!r} of {upload.key!r}")
        return found

    def forget(self, upload: Upload) -> None:
        """Drop the upload and its parts, if it is there."""
        self._uploads.pop(upload.upload_id, None)

    def uploads(self) -> Sequence[Upload]:
        """Every upload, in order of key, then of beginning."""
        return sorted((p.upload for p in self._uploads.values()), key=lambda u: (u.key.encode(), u.begun_ns))


class MemoryObjectStore:
    """The port over a :class:`MemoryBucket`.

    Args:
        env: gives modification times.
        bucket: state to share; a new one when not given.
    """

    def __init__(self, env: Env, bucket: MemoryBucket | None = None) -> None:
        self._env = env
        self._bucket = bucket or MemoryBucket()
        self._closed = False

    @property
    def capabilities(self) -> Capabilities:
        return _CAPABILITIES

    @property
    def url(self) -> str:
        return "memory:"

    async def probe(self) -> None:
        await self._enter()

    async def head(self, key: Key) -> ObjectInfo:
        await self._enter()
        return self._bucket.find(key)[0]

    async def get_range(self, key: Key, offset: int, into: memoryview, *, etag: ETag | None = None) -> None:
        await self._enter()
        info, body = self._bucket.find(key)
        if etag is not None and info.etag != etag:
            raise PreconditionError(f"{key!r} is no longer the generation {etag!r}")
        check_range(key, offset, len(into), info.size)
        into[:] = memoryview(body)[offset : offset + len(into)]

    async def put(
        self, key: Key, body: Body, *, condition: Condition = ANY, metadata: Mapping[str, str] | None = None
    ) -> ObjectInfo:
        check_key(key, _CAPABILITIES)
        check_body(key, body, _CAPABILITIES.part_bytes_max)
        taken = check_metadata(metadata)
        await self._enter()
        return self._store(key, bytes(body), condition, taken)

    async def begin_upload(self, key: Key, *, metadata: Mapping[str, str] | None = None) -> Upload:
        check_key(key, _CAPABILITIES)
        taken = check_metadata(metadata)
        await self._enter()
        upload = Upload(key, self._bucket.next_name(), self._env.wall_ns())
        self._bucket.begin(upload, taken)
        return upload

    async def put_part(self, upload: Upload, number: int, body: Body) -> Part:
        assert 1 <= number <= _CAPABILITIES.part_count_max, f"part number {number} out of range"
        size = check_body(upload.key, body, _CAPABILITIES.part_bytes_max)
        await self._enter()
        part = Part(number, ETag(self._bucket.next_name()), size)
        self._bucket.pending(upload).parts[number] = (part, bytes(body))
        return part

    async def complete_upload(self, upload: Upload, parts: Sequence[Part], *, condition: Condition = ANY) -> ObjectInfo:
        ordered = check_parts(parts, _CAPABILITIES)
        await self._enter()
        pending = self._bucket.pending(upload)
        for part in ordered:
            if part.number not in pending.parts or pending.parts[part.number][0].etag != part.etag:
                raise StoreRejectedError(f"part {part.number} of {upload.key!r} is not the one that was sent")
        body = b"".join(pending.parts[part.number][1] for part in ordered)
        info = self._store(upload.key, body, condition, pending.metadata)
        self._bucket.forget(upload)
        return info

    async def abort_upload(self, upload: Upload) -> None:
        await self._enter()
        self._bucket.forget(upload)

    async def list_uploads(self, prefix: str = "") -> Sequence[Upload]:
        await self._enter()
        return [upload for upload in self._bucket.uploads() if upload.key.startswith(prefix)]

    async def list_page(
        self, prefix: str = "", *, delimiter: str = "", token: str | None = None, limit: int = 1000
    ) -> ListPage:
        check_list_arguments(delimiter, limit)
        await self._enter()
        if not is_text(prefix):
            return ListPage([])
        first = key_utf8(Key(prefix)) if token is None else bytes.fromhex(token)
        objects: list[ObjectInfo] = []
        prefixes: list[str] = []
        while True:
            key = next(self._bucket.keys_from(first), None)
            if key is None or not key.startswith(prefix):
                return ListPage(objects, prefixes)
            if len(objects) + len(prefixes) == limit:
                return ListPage(objects, prefixes, first.hex())
            head, found, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
            if found:
                prefixes.append(prefix + head + delimiter)
                first = prefixes[-1][:-1].encode() + b"0"  # "0" is the byte after "/": past everything under it
            else:
                info = self._bucket.find(key)[0]
                objects.append(ObjectInfo(key, info.size, info.etag, info.mtime_ns))
                first = key.encode() + b"\0"

    async def delete(self, key: Key, *, condition: Condition = ANY) -> None:
        assert not condition.absent, "there is nothing to delete where nothing may be"
        await self._enter()
        self._bucket.check(key, condition)
        self._bucket.remove(key)

    async def copy(
        self,
        source: Key,
        target: Key,
        *,
        etag: ETag,
        condition: Condition = ANY,
        metadata: Mapping[str, str] | None = None,
    ) -> ObjectInfo:
        check_key(target, _CAPABILITIES)
        taken = check_metadata(metadata)
        await self._enter()
        info, body = self._bucket.find(source)
        self._bucket.check(source, Condition(etag=etag))
        return self._store(target, body, condition, dict(info.metadata or {}) if metadata is None else taken)

    async def aclose(self) -> None:
        self._closed = True
        await trio.lowlevel.checkpoint()

    async def _enter(self) -> None:
        await trio.lowlevel.checkpoint()
        if self._closed:
            raise StoreRejectedError("the store is closed")

    def _store(self, key: Key, body: bytes, condition: Condition, metadata: Mapping[str, str]) -> ObjectInfo:
        info = ObjectInfo(key, len(body), ETag(self._bucket.next_name()), self._env.wall_ns(), metadata)
        self._bucket.store(info, body, condition)
        return info
