"""The object store port: what every bucket of every provider must do, in the words exactly, at most and never.

All calls are asynchronous and may block on the network; none blocks the event loop. Keys are :data:`~ckptfs.types.Key`
(text, no leading slash, relative to the mount's prefix: the adapter adds the prefix of its URL). Errors are those of
:mod:`ckptfs.errors`; an adapter never lets an SDK's own exception out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ckptfs.types import ETag, Key

Body = bytes | bytearray | memoryview
"""Bytes to send. A memoryview (often of an mmap) must stay valid until the call returns.

An adapter never copies all of it.
"""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a store can do; a value, so that decisions can be made on it without I/O.

    Attributes:
        part_bytes_min: smallest part of a multipart upload but the last.
        part_bytes_max: largest part, and largest body of :meth:`ObjectStore.put`.
        part_count_max: most parts in one upload.
        object_bytes_max: largest object.
        key_bytes_max: longest key in UTF-8, prefix included.
        conditional_put: if_match and if_none_match are honoured on put, complete and copy.
        conditional_delete: if_match is honoured on delete.
        checksums: the server refuses a body whose checksum does not match.
    """

    part_bytes_min: int
    part_bytes_max: int
    part_count_max: int
    object_bytes_max: int
    key_bytes_max: int
    conditional_put: bool
    conditional_delete: bool
    checksums: bool


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One generation of one object.

    Attributes:
        key: its key.
        size: bytes.
        etag: name of this generation: two generations of a key never share it unless their bytes are equal.
        mtime_ns: when the store took it, nanoseconds since the epoch.
        metadata: user metadata, lower-case names; empty in listings (``None`` there: not known).
    """

    key: Key
    size: int
    etag: ETag
    mtime_ns: int
    metadata: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """One part that the store has taken: its number (from 1), the etag and the checksum that completion needs."""

    number: int
    etag: ETag
    size: int
    checksum: str = ""


@dataclass(frozen=True, slots=True)
class Upload:
    """A multipart upload that was begun and neither completed nor aborted.

    Attributes:
        key: the object that it will be.
        upload_id: the store's name of it.
        begun_ns: when it was begun, nanoseconds since the epoch; 0 if not known.
        token: what a wrapper that retries recognises the finished object by. Keep it with the upload when another life
            of the process may complete it. Empty in :meth:`ObjectStore.list_uploads`.
    """

    key: Key
    upload_id: str
    begun_ns: int = 0
    token: str = ""


@dataclass(frozen=True, slots=True)
class Condition:
    """Precondition on the object that a call replaces or deletes.

    At most one may be set. ``absent`` holds when there is no object; ``etag`` holds when exactly this generation is
    there.
    """

    absent: bool = False
    etag: ETag | None = None

    def __post_init__(self) -> None:
        assert not (self.absent and self.etag is not None), "a condition is either absent or an etag"


ANY = Condition()
ABSENT = Condition(absent=True)


@dataclass(frozen=True, slots=True)
class ListPage:
    """A page of a listing, in UTF-8 order of keys.

    Attributes:
        objects: objects directly under the prefix (no delimiter after it).
        prefixes: common prefixes up to and including the delimiter; empty without a delimiter.
        next_token: give it to the next call; ``None`` on the last page.
    """

    objects: Sequence[ObjectInfo]
    prefixes: Sequence[str] = field(default=())
    next_token: str | None = None


class ObjectStore(Protocol):
    """A bucket (and a prefix in it)."""

    @property
    def capabilities(self) -> Capabilities:
        """What this store can do."""

    @property
    def url(self) -> str:
        """The URL it was opened with, without secrets."""

    async def probe(self) -> None:
        """Return if the bucket is there and may be listed.

        Raises:
            BucketNotFoundError, StoreDeniedError, StoreUnavailableError: each with a hint for the operator.
        """

    async def head(self, key: Key) -> ObjectInfo:
        """The newest generation of ``key``, with its user metadata.

        Raises:
            ObjectNotFoundError: there is none.
        """

    async def get_range(self, key: Key, offset: int, into: memoryview, *, etag: ETag | None = None) -> None:
        """Fill ``into`` with exactly ``len(into)`` bytes of ``key`` from ``offset``, all of one generation.

        The transfer's checksum is verified where the store gives one. On an error the content of ``into`` is undefined.

        Raises:
            ObjectNotFoundError: no such key.
            PreconditionError: the object is no longer the generation ``etag``.
            StoreRejectedError: the range goes beyond the end of the object.
            StoreCorruptionError, StoreUnavailableError: short or wrong body.
        """

    async def put(
        self, key: Key, body: Body, *, condition: Condition = ANY, metadata: Mapping[str, str] | None = None
    ) -> ObjectInfo:
        """Make ``key`` exactly ``body``, whole or not at all; visible to every later call when this returns.

        The checksum of ``body`` is sent along and verified by the server.

        Raises:
            PreconditionError: ``condition`` did not hold; nothing was changed.
            StoreUnavailableError: it is not known whether the object was stored.
        """

    async def begin_upload(self, key: Key, *, metadata: Mapping[str, str] | None = None) -> Upload:
        """Begin a multipart upload. Nothing is visible under ``key`` before :meth:`complete_upload`."""

    async def put_part(self, upload: Upload, number: int, body: Body) -> Part:
        """Send part ``number`` (from 1), checksum verified by the server. Sending a number again replaces that part."""

    async def complete_upload(self, upload: Upload, parts: Sequence[Part], *, condition: Condition = ANY) -> ObjectInfo:
        """Make the object visible, whole or not at all, as the concatenation of ``parts`` in order of number.

        Raises:
            PreconditionError: ``condition`` did not hold; nothing became visible (the upload may still exist).
            ObjectNotFoundError: the upload is not there (completed before, or aborted).
        """

    async def abort_upload(self, upload: Upload) -> None:
        """Drop the upload and its parts. Returns too when it is already gone."""

    async def list_uploads(self, prefix: str = "") -> Sequence[Upload]:
        """Every multipart upload under ``prefix`` that is neither completed nor aborted."""

    async def list_page(
        self, prefix: str = "", *, delimiter: str = "", token: str | None = None, limit: int = 1000
    ) -> ListPage:
        """One page of at most ``limit`` (1 to 1000) objects and prefixes.

        ``delimiter`` is a slash or empty. Give all pages of a listing the same arguments but the token.

        Over all pages every object that is there during the whole listing is reported exactly once; one that comes or
        goes meanwhile at most once.
        """

    async def delete(self, key: Key, *, condition: Condition = ANY) -> None:
        """Remove ``key``. Returns too when it is not there and no etag was asked for.

        Raises:
            PreconditionError: another generation than ``condition.etag`` is there (only with the capability). When
                nothing at all is there, a store may also return.
        """

    async def copy(
        self,
        source: Key,
        target: Key,
        *,
        etag: ETag,
        condition: Condition = ANY,
        metadata: Mapping[str, str] | None = None,
    ) -> ObjectInfo:
        """Make ``target`` exactly the generation ``etag`` of ``source``, server-side, whole or not at all, of any size.

        The target gets the source's metadata, or with ``metadata`` exactly this.

        Raises:
            ObjectNotFoundError: no such source.
            PreconditionError: the source is another generation, or ``condition`` on the target did not hold.
        """

    async def aclose(self) -> None:
        """Release connections. Calls after this fail with :class:`~ckptfs.errors.StoreError`."""
