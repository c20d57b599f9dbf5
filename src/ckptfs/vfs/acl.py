"""POSIX ACLs in the form of the ``system.posix_acl_*`` attributes.

Layout (linux/posix_acl_xattr.h): u32 version 2, then entries of u16 tag, u16 permissions, u32 id, little-endian. The
kernel decides who may do what; what the filesystem owes it is that mode and ACL agree, and that a directory's default
ACL is inherited (acl(5)).
"""

from __future__ import annotations

import errno
import struct
from dataclasses import dataclass, replace

from ckptfs.errors import PosixError

ACCESS = b"system.posix_acl_access"
DEFAULT = b"system.posix_acl_default"

_VERSION = 2
_HEADER = struct.Struct("<I")
_ENTRY = struct.Struct("<HHI")

USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry: tag, permissions (rwx bits), and the user or group id where the tag has one."""

    tag: int
    permissions: int
    id: int


def decode(value: bytes) -> list[Entry]:
    """Entries of an attribute's value.

    Raises:
        PosixError: EINVAL, it is not an ACL.
    """
    whole = len(value) >= _HEADER.size and not (len(value) - _HEADER.size) % _ENTRY.size
    if not whole or _HEADER.unpack_from(value)[0] != _VERSION:
        raise PosixError(errno.EINVAL)
    return [Entry(*fields) for fields in _ENTRY.iter_unpack(value[_HEADER.size :])]


def encode(entries: list[Entry]) -> bytes:
    """The attribute's value of entries."""
    return _HEADER.pack(_VERSION) + b"".join(_ENTRY.pack(entry.tag, entry.permissions, entry.id) for entry in entries)


def is_minimal(entries: list[Entry]) -> bool:
    """Whether the mode says all that the ACL says."""
    return all(entry.tag in {USER_OBJ, GROUP_OBJ, OTHER} for entry in entries)


def mode_of(entries: list[Entry], mode: int) -> int:
    """``mode`` with its permission bits as the ACL has them: the group bits are the mask's, if there is one."""
    bits = {entry.tag: entry.permissions for entry in entries}
    group = bits.get(MASK, bits.get(GROUP_OBJ, 0))
    return (mode & ~0o777) | bits.get(USER_OBJ, 0) << 6 | group << 3 | bits.get(OTHER, 0)


def with_mode(entries: list[Entry], mode: int) -> list[Entry]:
    """The ACL after a chmod to ``mode``: owner, mask (else group) and other follow the bits."""
    has_mask = any(entry.tag == MASK for entry in entries)
    bits = {USER_OBJ: mode >> 6 & 7, MASK if has_mask else GROUP_OBJ: mode >> 3 & 7, OTHER: mode & 7}
    return [replace(entry, permissions=bits[entry.tag]) if entry.tag in bits else entry for entry in entries]


def inherit(default: list[Entry], mode: int) -> tuple[list[Entry], int]:
    """Access ACL and mode of something made with ``mode`` in a directory with this default ACL (no umask then).

    Each class gets at most what ``mode`` asks for.
    """
    has_mask = any(entry.tag == MASK for entry in default)
    bits = {USER_OBJ: mode >> 6 & 7, MASK if has_mask else GROUP_OBJ: mode >> 3 & 7, OTHER: mode & 7}
    entries = [
        replace(entry, permissions=entry.permissions & bits[entry.tag]) if entry.tag in bits else entry
        for entry in default
    ]
    return entries, mode_of(entries, mode)
