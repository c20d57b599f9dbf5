"""What every adapter demands of its arguments, in one place, so that all stores refuse the same things.

Assertions guard against our own bugs; :class:`~ckptfs.errors.StoreRejectedError` is for what the world brings (a key of
an odd bucket, metadata of a user).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ckptfs.errors import StoreRejectedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ckptfs.objectstore.base import Body, Capabilities, Part
    from ckptfs.types import Key

METADATA_BYTES_MAX = 2048
"""Names and values together, as S3 counts them; the smallest of the providers' limits."""

LIST_LIMIT_MAX = 1000
"""Most entries of one page that every provider grants."""

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")


def key_utf8(key: Key) -> bytes:
    """The key's UTF-8 bytes, which give the order of listings.

    Raises:
        StoreRejectedError: the key holds lone surrogates, so it has no UTF-8 form.
    """
    try:
        return key.encode()
    except UnicodeEncodeError as e:
        raise StoreRejectedError(
            f"key {key!r} is not Unicode text", hint="object stores hold UTF-8 names only; rename the file"
        ) from e


def is_text(key: str) -> bool:
    """Whether ``key`` has a UTF-8 form; a file's name of other bytes has not."""
    return key.isascii() or not any("\ud800" <= character <= "\udfff" for character in key)


def check_key(key: Key, capabilities: Capabilities, *, prefix: str = "") -> None:
    """Refuse a key to write that no store of these capabilities can hold.

    Raises:
        StoreRejectedError: empty, not Unicode text, or too long together with ``prefix``.
    """
    byte_count = len(key_utf8(key)) + len(prefix.encode())
    if not key:
        raise StoreRejectedError("an object needs a key that is not empty")
    if byte_count > capabilities.key_bytes_max:
        raise StoreRejectedError(
            f"key of {byte_count} bytes is longer than the {capabilities.key_bytes_max} the store takes: {key!r}",
            hint="use a shorter path",
        )


def check_metadata(metadata: Mapping[str, str] | None) -> dict[str, str]:
    """A copy of ``metadata`` that every provider carries unchanged.

    Names are lower-case ASCII words (``[a-z0-9._-]``), values printable ASCII, not empty and without blanks at their
    ends, 2 KiB in all: what an HTTP header keeps on every provider. Anything else is the caller's to encode.

    Raises:
        StoreRejectedError: a name or a value would not survive the round trip.
    """
    taken = dict(metadata or {})
    for name, value in taken.items():
        if _NAME.fullmatch(name) is None or _VALUE.fullmatch(value) is None:
            raise StoreRejectedError(
                f"metadata {name!r}={value!r} would not survive an HTTP header", hint="encode it as printable ASCII"
            )
    byte_count = sum(len(name) + len(value) for name, value in taken.items())
    if byte_count > METADATA_BYTES_MAX:
        raise StoreRejectedError(
            f"{byte_count} bytes of metadata are more than the {METADATA_BYTES_MAX} that every store takes"
        )
    return taken


def check_body(key: Key, body: Body, byte_count_max: int) -> int:
    """Length of ``body`` in bytes.

    Raises:
        StoreRejectedError: it is longer than ``byte_count_max``.
    """
    size = body.nbytes if isinstance(body, memoryview) else len(body)
    if size > byte_count_max:
        raise StoreRejectedError(
            f"body of {size} bytes for {key!r} is more than the {byte_count_max} that one request takes",
            hint="send it in parts",
        )
    return size


def check_parts(parts: Sequence[Part], capabilities: Capabilities) -> list[Part]:
    """``parts`` in order of number.

    Raises:
        StoreRejectedError: none, too many, twice the same number, or one before the last below the smallest size.
    """
    ordered = sorted(parts, key=lambda part: part.number)
    if not ordered:
        raise StoreRejectedError("an upload needs at least one part")
    if len(ordered) > capabilities.part_count_max:
        raise StoreRejectedError(
            f"{len(ordered)} parts are more than the {capabilities.part_count_max} that one upload takes",
            hint="use larger parts",
        )
    if len({part.number for part in ordered}) != len(ordered) or ordered[0].number < 1:
        raise StoreRejectedError("part numbers must be distinct and begin at 1 or above")
    short = [part.number for part in ordered[:-1] if part.size < capabilities.part_bytes_min]
    if short:
        raise StoreRejectedError(
            f"part {short[0]} is smaller than {capabilities.part_bytes_min} bytes and not the last"
        )
    return ordered


def check_list_arguments(delimiter: str, limit: int) -> None:
    """Assert what the port demands of a listing."""
    assert delimiter in {"", "/"}, f"the delimiter is a slash or nothing, not {delimiter!r}"
    assert 1 <= limit <= LIST_LIMIT_MAX, f"a page has 1 to {LIST_LIMIT_MAX} entries, not {limit}"


def check_range(key: Key, offset: int, length: int, size: int) -> None:
    """Refuse a range that goes beyond the end of an object of ``size`` bytes.

    Raises:
        StoreRejectedError: it does.
    """
    assert offset >= 0, "an offset is never negative"
    if offset + length > size:
        raise StoreRejectedError(f"bytes {offset} to {offset + length} go beyond the {size} of {key!r}")
