"""File names as object keys and back: a bijection between names of any bytes and text that every store takes.

A name that is valid UTF-8 is its own text. A byte that is not part of valid UTF-8 becomes one character of the last
256 of Unicode's private planes (U+10FF00 + byte); a name that holds such a character itself has that character's
bytes written the same way, so that no two names share a text. Text that no name has (wrong use of these characters,
empty, ``.``, ``..``, too long) has no file.
"""

from __future__ import annotations

from ckptfs.types import Key

NAME_BYTES_MAX = 255
_ESCAPE = 0x10FF00


def _escape(raw: bytes) -> str:
    return "".join(chr(_ESCAPE + byte) for byte in raw)


def name_to_text(name: bytes) -> str:
    """The text that stands for ``name`` in a key."""
    text = name.decode("utf-8", "surrogateescape")
    if text.isascii():
        return text
    return "".join(
        _escape(char.encode("utf-8", "surrogateescape"))
        if 0xDC80 <= ord(char) <= 0xDCFF or ord(char) >= _ESCAPE
        else char
        for char in text
    )


def text_to_name(text: str) -> bytes | None:
    """The name that ``text`` stands for; ``None`` when no file can have it."""
    if text.isascii():
        name = text.encode()
    else:
        name = b"".join(
            bytes([ord(char) - _ESCAPE]) if ord(char) >= _ESCAPE else char.encode("utf-8", "surrogatepass")
            for char in text
        )
        if name_to_text(name) != text:
            return None
    if not name or name in {b".", b".."} or len(name) > NAME_BYTES_MAX or b"/" in name or b"\0" in name:
        return None
    return name


def unnameable(text: str) -> str:
    """Why no file can have ``text`` as its name, for people: a short reason that groups like cases."""
    if not text:
        return "empty name"
    if text in {".", ".."}:
        return "name is . or .."
    if len(text.encode("utf-8", "surrogatepass")) > NAME_BYTES_MAX:
        return "name over 255 bytes"
    return "name that no file can have"


def join(prefix: str, name: bytes) -> Key:
    """The key of ``name`` in the directory whose keys begin with ``prefix`` (empty, or ending in a slash)."""
    return Key(prefix + name_to_text(name))
