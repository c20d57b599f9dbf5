"""Rows of the namespace as values in memory. Field order is column order (:mod:`ckptfs.namespace.schema`)."""

from __future__ import annotations

import json
import stat
from dataclasses import dataclass, field
from typing import Any

from ckptfs.types import ContentId, ContentState, ETag, Ino, Key, Lsn

Values = tuple[Any, ...]
"""One row as SQLite takes and gives it."""

PLACE_NONE = 0
PLACE_FILE = 1
PLACE_INLINE = 2


@dataclass(slots=True)
class Inode:
    """See table ``inode``."""

    ino: Ino
    mode: int
    uid: int
    gid: int
    nlink: int
    rdev: int
    size: int
    allocated: int
    atime_ns: int
    mtime_ns: int
    ctime_ns: int
    birth_ns: int
    content: ContentId
    parent: Ino
    name: bytes
    target: bytes | None
    listed: int
    hidden: int

    @property
    def is_dir(self) -> bool:
        return stat.S_ISDIR(self.mode)

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.mode)

    def values(self) -> Values:
        return (
            self.ino,
            self.mode,
            self.uid,
            self.gid,
            self.nlink,
            self.rdev,
            self.size,
            self.allocated,
            self.atime_ns,
            self.mtime_ns,
            self.ctime_ns,
            self.birth_ns,
            self.content,
            self.parent,
            self.name,
            self.target,
            self.listed,
            self.hidden,
        )


INODE_COLUMN_COUNT = 18


@dataclass(slots=True)
class Dentry:
    """See table ``dentry``."""

    parent: Ino
    name: bytes
    id: int
    ino: Ino

    def values(self) -> Values:
        return (self.parent, self.name, self.id, self.ino)


@dataclass(slots=True)
class Names:
    """See table ``names``."""

    ino: Ino
    names: set[tuple[Ino, bytes]]

    def values(self) -> Values:
        return (self.ino, json.dumps([[parent, name.hex()] for parent, name in sorted(self.names)]))

    @classmethod
    def decode(cls, ino: int, names: str) -> Names:
        return cls(Ino(ino), {(Ino(parent), bytes.fromhex(name)) for parent, name in json.loads(names)})


@dataclass(slots=True)
class Xattrs:
    """See table ``xattr``."""

    ino: Ino
    attributes: dict[bytes, bytes]

    def values(self) -> Values:
        return (self.ino, json.dumps({name.hex(): value.hex() for name, value in self.attributes.items()}))

    @classmethod
    def decode(cls, ino: int, attributes: str) -> Xattrs:
        return cls(Ino(ino), {bytes.fromhex(k): bytes.fromhex(v) for k, v in json.loads(attributes).items()})


@dataclass(slots=True)
class Content:
    """See table ``content``."""

    id: ContentId
    ino: Ino
    size: int = 0
    state: ContentState = ContentState.OPEN
    place: int = PLACE_NONE
    key: Key = field(default=Key(""))
    etag: ETag = field(default=ETag(""))
    block_bytes: int = 0
    digests: bytes = b""
    error: str = ""
    data: bytes | None = None

    def values(self) -> Values:
        return (
            self.id,
            self.ino,
            self.size,
            self.state.value,
            self.place,
            self.key,
            self.etag,
            self.block_bytes,
            self.digests,
            self.error,
            self.data,
        )

    @classmethod
    def decode(cls, *values: Any) -> Content:  # noqa: ANN401 - columns as SQLite gives them
        content = cls(*values)
        content.state = ContentState(content.state)
        return content


@dataclass(slots=True)
class ObjectRow:
    """See table ``object``."""

    key: Key
    etag: ETag
    size: int
    content: ContentId

    def values(self) -> Values:
        return (self.key, self.etag, self.size, self.content)


@dataclass(slots=True)
class Obligation:
    """See table ``obligation``.

    ``tried`` is not saved: an attempt may have changed the object without anyone noting it. What is read from the
    file may be of a life that ended in the middle of an attempt, so it counts as tried.
    """

    key: Key
    lsn: Lsn
    error: str = ""
    tried: bool = False

    def values(self) -> Values:
        return (self.key, self.lsn, self.error)

    @classmethod
    def decode(cls, key: str, lsn: int, error: str) -> Obligation:
        return cls(Key(key), Lsn(lsn), error, tried=True)


@dataclass(slots=True)
class UploadRow:
    """See table ``upload``."""

    upload_id: str
    key: Key

    def values(self) -> Values:
        return (self.upload_id, self.key)


@dataclass(slots=True)
class TreeMove:
    """See table ``tree_move``."""

    lsn: Lsn
    old_prefix: str
    new_prefix: str

    def values(self) -> Values:
        return (self.lsn, self.old_prefix, self.new_prefix)
