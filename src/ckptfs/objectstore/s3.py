"""``s3://``: Amazon S3 and what speaks like it, by boto3.

The SDK does credentials, regions, endpoints, signatures and control calls; it neither retries nor computes checksums
here.

**Checksums.** Every body sent carries its CRC-64/NVME, computed by us before and verified by the server; a completion
carries that of the whole object, combined from the parts', and its size. A read of a whole object is verified against
the full-object checksum if the store has one (CRC-64/NVME, CRC-32C, CRC-32); a read of a range can only be verified by
its length and the etag: S3 gives no checksum of a range.

**404 on HEAD** has no body: a missing bucket looks like a missing object there. :meth:`probe` tells them apart.
"""

from __future__ import annotations

from dataclasses import replace
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, TypeVar

import trio

from ckptfs.errors import (
    ObjectNotFoundError,
    PreconditionError,
    StoreCorruptionError,
    StoreError,
    StoreRejectedError,
    StoreUnavailableError,
)
from ckptfs.objectstore import s3_client, s3_errors, s3_wire
from ckptfs.objectstore.base import ANY, Capabilities, Condition, ListPage, ObjectInfo, Part, Upload
from ckptfs.objectstore.checks import (
    check_body,
    check_key,
    check_list_arguments,
    check_metadata,
    check_parts,
    check_range,
    is_text,
)
from ckptfs.types import ETag, Key

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mypy_boto3_s3 import S3Client

    from ckptfs.env import Env
    from ckptfs.objectstore.base import Body
    from ckptfs.objectstore.url import StoreURL

T = TypeVar("T")

CONNECTIONS_MAX = 32
"""Requests at a time: threads and pooled connections."""

COPY_BYTES_MAX = 5 << 30
"""Largest object that one CopyObject takes."""

COPY_PART_BYTES = 1 << 30
_COPY_PARTS_AT_ONCE = 8

_CAPABILITIES = Capabilities(
    part_bytes_min=5 << 20,
    part_bytes_max=5 << 30,
    part_count_max=10_000,
    object_bytes_max=5 << 40,
    key_bytes_max=1024,
    conditional_put=True,
    conditional_delete=True,
    checksums=True,
)


class S3ObjectStore:
    """The port over a bucket of S3.

    Args:
        url: bucket, prefix and parameters.
        env: clock and threads.
        connections_max: requests at a time.
        copy_bytes_max: objects above this are copied in parts.
        copy_part_bytes: size of these parts.
    """

    def __init__(
        self,
        url: StoreURL,
        env: Env,
        *,
        connections_max: int = CONNECTIONS_MAX,
        copy_bytes_max: int = COPY_BYTES_MAX,
        copy_part_bytes: int = COPY_PART_BYTES,
    ) -> None:
        self._url = url
        self._env = env
        self._bucket = url.bucket
        self._prefix = f"{url.prefix}/" if url.prefix else ""
        self._connections_max = connections_max
        self._copy_bytes_max = copy_bytes_max
        self._copy_part_bytes = copy_part_bytes
        self._limiter = trio.CapacityLimiter(connections_max)
        self._client: S3Client | None = None
        self._client_lock = trio.Lock()
        self._closed = False

    @property
    def capabilities(self) -> Capabilities:
        return _CAPABILITIES

    @property
    def url(self) -> str:
        return str(self._url)

    async def probe(self) -> None:
        def call(client: S3Client) -> None:
            client.list_objects_v2(Bucket=self._bucket, Prefix=self._prefix, MaxKeys=1)

        await self._run(f"list {self._url}", call)

    async def head(self, key: Key) -> ObjectInfo:
        return (await self._head(key))[0]

    async def get_range(self, key: Key, offset: int, into: memoryview, *, etag: ETag | None = None) -> None:
        view = into.cast("B")
        if len(view) == 0:  # HTTP has no empty range
            info = await self.head(key)
            if etag is not None and info.etag != etag:
                raise PreconditionError(f"{key!r} is no longer the generation {etag!r}")
            check_range(key, offset, 0, info.size)
            return
        _check_readable(key)
        request: dict[str, Any] = {**self._at(key), "Range": f"bytes={offset}-{offset + len(view) - 1}"}
        if etag is not None:
            request["IfMatch"] = s3_wire.quoted(etag)
        await self._run(
            f"read {key!r}", lambda client: s3_wire.take_body(client.get_object(**request), key, offset, view)
        )

    async def put(
        self, key: Key, body: Body, *, condition: Condition = ANY, metadata: Mapping[str, str] | None = None
    ) -> ObjectInfo:
        self._check_writable(key)
        size = check_body(key, body, _CAPABILITIES.part_bytes_max)
        taken = check_metadata(metadata)

        def call(client: S3Client) -> ObjectInfo:
            answer = client.put_object(
                **self._at(key),
                Body=s3_wire.sendable(body),
                ContentLength=size,
                ChecksumCRC64NVME=s3_wire.crc64(body),
                Metadata=taken,
                **s3_wire.conditional(condition),
            )
            return self._stored(key, size, answer, taken)

        return await self._run(f"write {key!r}", call, condition=condition)

    async def begin_upload(self, key: Key, *, metadata: Mapping[str, str] | None = None) -> Upload:
        self._check_writable(key)
        taken = check_metadata(metadata)

        def call(client: S3Client) -> Upload:
            answer = client.create_multipart_upload(
                **self._at(key), Metadata=taken, ChecksumAlgorithm="CRC64NVME", ChecksumType="FULL_OBJECT"
            )
            return Upload(key, answer["UploadId"], self._date_ns(answer))

        return await self._run(f"begin {key!r}", call)

    async def put_part(self, upload: Upload, number: int, body: Body) -> Part:
        assert 1 <= number <= _CAPABILITIES.part_count_max, f"part number {number} out of range"
        size = check_body(upload.key, body, _CAPABILITIES.part_bytes_max)

        def call(client: S3Client) -> Part:
            checksum = s3_wire.crc64(body)
            answer = client.upload_part(
                **self._at_upload(upload),
                PartNumber=number,
                Body=s3_wire.sendable(body),
                ContentLength=size,
                ChecksumCRC64NVME=checksum,
            )
            return Part(number, s3_wire.etag_in(answer), size, checksum)

        return await self._run(f"write part {number} of {upload.key!r}", call)

    async def complete_upload(self, upload: Upload, parts: Sequence[Part], *, condition: Condition = ANY) -> ObjectInfo:
        ordered = check_parts(parts, _CAPABILITIES)
        whole = s3_wire.combined_crc64([(part.checksum, part.size) for part in ordered])
        return await self._complete(upload, ordered, whole, condition)

    async def abort_upload(self, upload: Upload) -> None:
        def call(client: S3Client) -> None:
            client.abort_multipart_upload(**self._at_upload(upload))

        try:
            await self._run(f"abort {upload.key!r}", call)
        except ObjectNotFoundError:
            return

    async def list_uploads(self, prefix: str = "") -> Sequence[Upload]:
        def call(client: S3Client) -> list[Upload]:
            uploads = []
            request: dict[str, Any] = {"Bucket": self._bucket, "Prefix": self._prefix + prefix, "EncodingType": "url"}
            while True:
                answer = client.list_multipart_uploads(**request)
                for found in answer.get("Uploads", ()):
                    key = s3_wire.decoded(answer, found["Key"])
                    if key.startswith(self._prefix + prefix):
                        begun_ns = s3_wire.time_ns(found["Initiated"])
                        uploads.append(Upload(self._ours(key), found["UploadId"], begun_ns))
                if not answer.get("IsTruncated"):
                    return uploads
                request["KeyMarker"] = s3_wire.decoded(answer, answer["NextKeyMarker"])
                request["UploadIdMarker"] = answer["NextUploadIdMarker"]

        return await self._run(f"list uploads under {prefix!r}", call)

    async def list_page(
        self, prefix: str = "", *, delimiter: str = "", token: str | None = None, limit: int = 1000
    ) -> ListPage:
        check_list_arguments(delimiter, limit)
        if not is_text(prefix):
            await trio.lowlevel.checkpoint()
            return ListPage([])
        # boto3 asks for URL encoding by itself and undoes it: XML cannot carry every key.
        request: dict[str, Any] = {
            "Bucket": self._bucket,
            "Prefix": self._prefix + prefix,
            "MaxKeys": limit,
            "Delimiter": delimiter,
        }
        if token is not None:
            request["ContinuationToken"] = token
        answer = await self._run(f"list {prefix!r}", lambda client: client.list_objects_v2(**request))
        objects = [
            ObjectInfo(
                self._ours(found["Key"]), found["Size"], s3_wire.etag_in(found), s3_wire.time_ns(found["LastModified"])
            )
            for found in answer.get("Contents", ())
            if found["Key"] != self._prefix  # what some consoles make to show the prefix as a folder
        ]
        prefixes = [self._ours(found["Prefix"]) for found in answer.get("CommonPrefixes", ())]
        next_token = answer.get("NextContinuationToken") if answer.get("IsTruncated") else None
        if answer.get("IsTruncated") and not next_token:
            raise StoreUnavailableError(f"list {prefix!r}: the store says there is more, but not where")
        return ListPage(objects, prefixes, next_token)

    async def delete(self, key: Key, *, condition: Condition = ANY) -> None:
        assert not condition.absent, "there is nothing to delete where nothing may be"
        self._check_path(key)
        if not is_text(key) or not key:
            await trio.lowlevel.checkpoint()
            return

        def call(client: S3Client) -> None:
            client.delete_object(**self._at(key), **s3_wire.conditional(condition))

        try:
            await self._run(f"delete {key!r}", call, condition=condition)
        except ObjectNotFoundError:
            return

    async def copy(
        self,
        source: Key,
        target: Key,
        *,
        etag: ETag,
        condition: Condition = ANY,
        metadata: Mapping[str, str] | None = None,
    ) -> ObjectInfo:
        self._check_writable(target)
        info, checksum = await self._head(source, with_checksum=True)
        if info.etag != etag:
            raise PreconditionError(f"{source!r} is no longer the generation {etag!r}")
        taken = check_metadata(info.metadata if metadata is None else metadata)
        if info.size > self._copy_bytes_max:
            return await self._copy_in_parts(info, checksum, target, condition, taken)

        def call(client: S3Client) -> ObjectInfo:
            answer = client.copy_object(
                **self._at(target),
                CopySource={"Bucket": self._bucket, "Key": self._prefix + source},
                CopySourceIfMatch=s3_wire.quoted(etag),
                MetadataDirective="REPLACE",
                Metadata=taken,
                **s3_wire.conditional(condition),
            )
            result = answer["CopyObjectResult"]
            if checksum is not None and result.get("ChecksumCRC64NVME", checksum) != checksum:
                raise StoreCorruptionError(f"the copy of {source!r} to {target!r} has another checksum")
            return ObjectInfo(
                target, info.size, s3_wire.etag_in(result), s3_wire.time_ns(result["LastModified"]), taken
            )

        return await self._run(f"copy {source!r} to {target!r}", call, condition=condition)

    async def aclose(self) -> None:
        self._closed = True
        if self._client is not None:
            client, self._client = self._client, None
            await self._env.run_blocking(client.close)
        await trio.lowlevel.checkpoint()

    async def _run(self, what: str, call: Callable[[S3Client], T], *, condition: Condition = ANY) -> T:
        """Make one request on a thread; ``what`` it does is for the message of an error."""
        if self._closed:
            raise StoreRejectedError("the store is closed")
        try:
            client = self._client or await self._make_client()
            return await self._env.run_blocking(call, client, limiter=self._limiter)
        except s3_errors.CALL_ERRORS as e:
            raise s3_errors.error_of(e, what, condition) from e

    async def _make_client(self) -> S3Client:
        """The client, made by the first who needs it: that reads files and may ask a metadata service."""
        async with self._client_lock:
            if self._client is None:
                self._client = await self._env.run_blocking(
                    s3_client.make_client, self._url, self._connections_max, limiter=self._limiter
                )
            return self._client

    async def _head(self, key: Key, *, with_checksum: bool = False) -> tuple[ObjectInfo, str | None]:
        """The object, and its CRC-64/NVME if the store has it."""
        _check_readable(key)
        request: dict[str, Any] = {**self._at(key), **({"ChecksumMode": "ENABLED"} if with_checksum else {})}
        answer = await self._run(f"look at {key!r}", lambda client: client.head_object(**request))
        metadata = {name.lower(): text for name, text in answer.get("Metadata", {}).items()}
        info = ObjectInfo(
            key, answer["ContentLength"], s3_wire.etag_in(answer), s3_wire.time_ns(answer["LastModified"]), metadata
        )
        checksum: str | None = answer.get("ChecksumCRC64NVME")
        return info, checksum

    async def _complete(
        self, upload: Upload, parts: Sequence[Part], whole: str | None, condition: Condition
    ) -> ObjectInfo:
        """Complete an upload; ``whole`` is the CRC-64/NVME that the object must have, if it is known."""
        size = sum(part.size for part in parts)

        request: dict[str, Any] = {**self._at_upload(upload), "MpuObjectSize": size, **s3_wire.conditional(condition)}
        named = [{"PartNumber": part.number, "ETag": s3_wire.quoted(part.etag)} for part in parts]
        for name, part in zip(named, parts, strict=True):
            if part.checksum:
                name["ChecksumCRC64NVME"] = part.checksum
        request["MultipartUpload"] = {"Parts": named}
        if whole is not None:
            request |= {"ChecksumCRC64NVME": whole, "ChecksumType": "FULL_OBJECT"}

        def call(client: S3Client) -> ObjectInfo:
            answer = client.complete_multipart_upload(**request)
            return self._stored(upload.key, size, answer, None)

        return await self._run(f"complete {upload.key!r}", call, condition=condition)

    async def _copy_in_parts(
        self, info: ObjectInfo, whole: str | None, target: Key, condition: Condition, metadata: Mapping[str, str]
    ) -> ObjectInfo:
        """Copy what is too large for one request; the etag is asserted for every part, so all are of one generation."""
        upload = await self.begin_upload(target, metadata=metadata)
        try:
            parts = await self._copy_parts(info, upload)
            return replace(await self._complete(upload, parts, whole, condition), metadata=metadata)
        except BaseException:
            with trio.CancelScope(shield=True):
                await self.abort_upload(upload)
            raise

    async def _copy_parts(self, info: ObjectInfo, upload: Upload) -> list[Part]:
        """Copy all parts, several at a time; the first failure ends the others."""
        step = max(self._copy_part_bytes, -(-info.size // _CAPABILITIES.part_count_max))
        at_once = trio.CapacityLimiter(_COPY_PARTS_AT_ONCE)
        parts: list[Part] = []
        failures: list[StoreError] = []

        async def copy_part(number: int, begin: int, end: int, scope: trio.CancelScope) -> None:
            def call(client: S3Client) -> Part:
                answer = client.upload_part_copy(
                    **self._at_upload(upload),
                    PartNumber=number,
                    CopySource={"Bucket": self._bucket, "Key": self._prefix + info.key},
                    CopySourceIfMatch=s3_wire.quoted(info.etag),
                    CopySourceRange=f"bytes={begin}-{end - 1}",
                )
                result = answer["CopyPartResult"]
                return Part(number, s3_wire.etag_in(result), end - begin, result.get("ChecksumCRC64NVME", ""))

            try:
                async with at_once:
                    parts.append(await self._run(f"copy part {number} of {info.key!r} to {upload.key!r}", call))
            except StoreError as e:
                failures.append(e)
                scope.cancel()

        async with trio.open_nursery() as nursery:
            for number, begin in enumerate(range(0, info.size, step), 1):
                end = min(begin + step, info.size)
                nursery.start_soon(copy_part, number, begin, end, nursery.cancel_scope)
        if failures:
            raise failures[0]
        return sorted(parts, key=lambda part: part.number)

    def _at(self, key: Key) -> dict[str, Any]:
        return {"Bucket": self._bucket, "Key": self._prefix + key}

    def _at_upload(self, upload: Upload) -> dict[str, Any]:
        return {**self._at(upload.key), "UploadId": upload.upload_id}

    def _ours(self, key: str) -> Key:
        """The key without the prefix of the URL."""
        assert key.startswith(self._prefix), f"the store listed {key!r} for the prefix {self._prefix!r}"
        return Key(key[len(self._prefix) :])

    def _check_writable(self, key: Key) -> None:
        check_key(key, _CAPABILITIES, prefix=self._prefix)
        self._check_path(key)

    def _check_path(self, key: Key) -> None:
        """Refuse to change what a client or proxy on the way might take for another key."""
        if any(component in {".", ".."} for component in key.split("/")):
            raise StoreRejectedError(f"{key!r} has a '.' or '..' component", hint="HTTP clients resolve these in paths")

    def _stored(self, key: Key, size: int, answer: Mapping[str, Any], metadata: Mapping[str, str] | None) -> ObjectInfo:
        return ObjectInfo(key, size, s3_wire.etag_in(answer), self._date_ns(answer), metadata)

    def _date_ns(self, answer: Mapping[str, Any]) -> int:
        """When the store answered, by its own clock: answers to writes have no other time in them."""
        date = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
        try:
            return s3_wire.time_ns(parsedate_to_datetime(date))
        except (ValueError, TypeError):
            return self._env.wall_ns()


def _check_readable(key: Key) -> None:
    """Spare the request for a key that no bucket can have.

    Raises:
        ObjectNotFoundError: it is empty, or not Unicode text.
    """
    if not key or not is_text(key):
        raise ObjectNotFoundError(f"no object {key!r}")
