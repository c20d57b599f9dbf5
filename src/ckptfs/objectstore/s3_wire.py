"""What goes over the wire to S3 and back: bodies without copies, checksums, and the fields of answers."""

from __future__ import annotations

import base64
import re
import struct
from typing import IO, TYPE_CHECKING, Any, Protocol, cast
from urllib.parse import unquote_plus

from awscrt import checksums  # type: ignore[import-untyped]

from ckptfs.errors import StoreCorruptionError, StoreUnavailableError
from ckptfs.objectstore.base import ObjectInfo
from ckptfs.objectstore.checks import check_range
from ckptfs.types import ETag, Key

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from ckptfs.objectstore.base import Body, Condition

IO_BYTES = 1 << 20
"""Bytes handed to or taken from the socket at a time."""

_COPIED_BYTES_MAX = 64 << 10
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


class Stream(Protocol):
    """Body of an answer."""

    def readinto(self, into: memoryview, /) -> int:
        """Fill ``into`` from its beginning; how many bytes came, 0 at the end."""

    def read(self, size: int, /) -> bytes:
        """At most ``size`` bytes."""


class BodyReader:
    """A memoryview as the file-like object that boto3 wants, without a copy of it.

    :meth:`read` deviates from a file in one point: it hands out up to :data:`IO_BYTES` whatever it is asked for. The
    HTTP client asks for 16 KiB, sends what it gets, and would spend most of its time on the number of calls.
    """

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._position = 0

    def __len__(self) -> int:
        return len(self._view)

    def read(self, size: int = -1) -> memoryview | bytes:
        """The next bytes; a view into the body."""
        end = len(self._view) if size < 0 else self._position + max(size, IO_BYTES)
        chunk = self._view[self._position : end]
        self._position += len(chunk)
        return chunk if len(chunk) > 0 else b""

    def seek(self, offset: int, whence: int = 0) -> int:
        """As of a file."""
        self._position = offset + (0, self._position, len(self._view))[whence]
        return self._position

    def tell(self) -> int:
        """As of a file."""
        return self._position


def sendable(body: Body) -> bytes | IO[bytes]:
    """``body`` as boto3 takes it. Only small ones are copied: they go out in one piece with the headers."""
    view = memoryview(body).cast("B")
    return bytes(view) if len(view) <= _COPIED_BYTES_MAX else cast("IO[bytes]", BodyReader(view))


def receive(stream: Stream, into: memoryview) -> None:
    """Fill ``into`` from the body of an answer, a piece at a time.

    Raises:
        StoreUnavailableError: the body ended early.
        StoreCorruptionError: the body goes on.
    """
    done = 0
    while done < len(into):
        count = stream.readinto(into[done : done + IO_BYTES])
        if count == 0:
            raise StoreUnavailableError(f"the body ended after {done} of {len(into)} bytes")
        done += count
    if stream.read(1):
        raise StoreCorruptionError(f"the body is longer than the {len(into)} bytes asked for")


def crc64(body: Body) -> str:
    """CRC-64/NVME of ``body`` as S3 writes it: base64 of eight bytes, big end first."""
    # An empty memoryview has no address, which the C code refuses.
    value: int = checksums.crc64nvme(body) if len(body) > 0 else 0
    return _encode64(value)


def combined_crc64(parts: list[tuple[str, int]]) -> str:
    """CRC-64/NVME of a concatenation, from those of its parts and their sizes."""
    value = 0
    for text, size in parts:
        value = checksums.combine_crc64nvme(value, int.from_bytes(base64.b64decode(text), "big"), size)
    return _encode64(value)


def _encode64(value: int) -> str:
    return base64.b64encode(struct.pack(">Q", value)).decode()


def _crc_text(fn: Callable[[Any], int], size: int) -> Callable[[memoryview], str]:
    return lambda view: base64.b64encode((fn(view) if len(view) else 0).to_bytes(size, "big")).decode()


_VERIFIERS: Mapping[str, Callable[[memoryview], str]] = {
    "ChecksumCRC64NVME": _crc_text(checksums.crc64nvme, 8),
    "ChecksumCRC32C": _crc_text(checksums.crc32c, 4),
    "ChecksumCRC32": _crc_text(checksums.crc32, 4),
}
"""Checksums that are cheap enough to be computed on every read.

What is stored with others is verified by length only.
"""


def verify(answer: Mapping[str, Any], into: memoryview) -> bool:
    """Check the body of a whole object against the checksum in its answer; whether there was one to check against.

    Raises:
        StoreCorruptionError: it does not match.
    """
    for name, compute in _VERIFIERS.items():
        expected = answer.get(name)
        # A composite checksum ("…-3") is one over the checksums of the parts, whose borders the answer does not tell.
        if expected is None or "-" in expected or answer.get("ChecksumType", "FULL_OBJECT") != "FULL_OBJECT":
            continue
        found = compute(into)
        if found != expected:
            raise StoreCorruptionError(f"{name} of {len(into)} bytes received is {found}, the store has {expected}")
        return True
    return False


def take_body(answer: Mapping[str, Any], key: Key, offset: int, view: memoryview) -> None:
    """Take the body of a GET with a range into ``view``."""
    body = answer["Body"]
    try:
        total = answer["ContentLength"]
        begin = 0
        found = _CONTENT_RANGE.fullmatch(answer.get("ContentRange", ""))
        if found is not None:
            begin, end, total = int(found[1]), int(found[2]) + 1, int(found[3])
            check_range(key, offset, len(view), total)
            if (begin, end) != (offset, offset + len(view)):
                raise StoreUnavailableError(
                    f"{key!r}: asked for {offset} to {offset + len(view)}, got {begin} to {end}"
                )
        elif offset > 0 or total != len(view):
            # A server without ranges, or one that answers a range of everything in its own way.
            check_range(key, offset, len(view), total)
            raise StoreUnavailableError(f"{key!r}: the store ignored the range and sent all {total} bytes")
        receive(body, view)
    finally:
        body.close()  # back in the pool already if it was read to its end, else the connection is of no use any more
    if offset == 0 and len(view) == total:
        verify(answer, view)


def conditional(condition: Condition) -> dict[str, Any]:
    """The headers that ask for ``condition``."""
    if condition.absent:
        return {"IfNoneMatch": "*"}
    return {} if condition.etag is None else {"IfMatch": quoted(condition.etag)}


def quoted(etag: ETag) -> str:
    """``etag`` as HTTP writes it."""
    return f'"{etag}"'


def etag_in(answer: Mapping[str, Any]) -> ETag:
    """The etag in an answer.

    Raises:
        StoreUnavailableError: an answer of success without one is no answer of success.
    """
    text = answer.get("ETag")
    if not text:
        raise StoreUnavailableError("the store answered without an etag")
    return ETag(text.strip('"'))


def info_in(answer: Mapping[str, Any], key: Key, size: int, metadata: Mapping[str, str] | None = None) -> ObjectInfo:
    """The generation that ``answer`` tells of in its fields ETag and LastModified."""
    return ObjectInfo(key, size, etag_in(answer), time_ns(answer["LastModified"]), metadata)


def time_ns(time: datetime) -> int:
    """Nanoseconds since the epoch."""
    return int(time.timestamp()) * 1_000_000_000 + time.microsecond * 1000


def decoded(answer: Mapping[str, Any], text: str) -> str:
    """A key in a listing that was asked for URL-encoded, whether the server did so or not."""
    return unquote_plus(text) if answer.get("EncodingType") == "url" else text
