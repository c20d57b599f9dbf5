"""What a file of a ``file://`` store says about itself: its etag and its user metadata.

**ETag.** ``ino-size-mtime-ctime``. A store's own files carry a modification time that was set from the fine clock, so
that an inode number that the filesystem gives out again within one tick of the kernel's coarse clock still makes
another etag. For files of other tools the kernel's ctime does it, but only from one tick on: an etag is handed out as
*settled* when the file's ctime is older than a tick, so that every later change shows in it.

**Metadata.** JSON in the xattr ``user.ckptfs.meta``, together with the size and mtime it belongs to: after another tool
rewrote the file in place, or copied it with its xattrs and then changed it, the metadata is of other bytes and counts
as none. Where the filesystem has no user xattrs, or no room for these, the same JSON stands in
``.ckptfs/tmp/meta/INO-SIZE-MTIME``; written and synced before the object gets its name, removed after the object lost
it. A sidecar without its file is garbage that nothing reads.
"""

from __future__ import annotations

import errno
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptfs.types import ETag

if TYPE_CHECKING:
    from collections.abc import Mapping

XATTR = "user.ckptfs.meta"
TICK_NS = 20_000_000
"""Longer than a tick of the kernel's coarse clock at HZ=100, nanoseconds."""

_CLOCK_SKEW_NS = 1_000_000_000
_XATTR_UNUSABLE = {errno.ENOTSUP, errno.ENOSPC, errno.E2BIG, errno.ERANGE, errno.EPERM}


def etag_of(status: os.stat_result) -> ETag:
    """The generation that ``status`` describes."""
    return ETag(f"{status.st_ino:x}-{status.st_size:x}-{status.st_mtime_ns:x}-{status.st_ctime_ns:x}")


def same_bytes(status: os.stat_result, before: os.stat_result) -> bool:
    """Whether an open file still holds the bytes of ``before``.

    A rename or an unlink meanwhile, which moves its ctime, is fine.
    """
    return (status.st_size, status.st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def is_recent(status: os.stat_result, now_ns: int) -> bool:
    """Whether the file changed within this tick of the kernel's clock, so that the next change may not move its ctime.

    A ctime far in the future is of a file server with a clock ahead of ours: then there is nothing to wait for.
    """
    return -_CLOCK_SKEW_NS <= now_ns - status.st_ctime_ns < TICK_NS


@dataclass(frozen=True, slots=True)
class Noted:
    """What was written beside the bytes when the store took them: the state it belongs to, and the user's metadata."""

    size: int
    mtime_ns: int
    user: Mapping[str, str]

    def belongs_to(self, status: os.stat_result) -> bool:
        """Whether the file's bytes are still those that this was written for."""
        return (self.size, self.mtime_ns) == (status.st_size, status.st_mtime_ns)

    def dump(self) -> bytes:
        """As stored."""
        return json.dumps({"size": self.size, "mtime_ns": self.mtime_ns, "user": dict(self.user)}).encode()


def parse(raw: bytes) -> Noted | None:
    """The reverse of :meth:`Noted.dump`; ``None`` for anything that is not of that form (another tool's xattr)."""
    try:
        value = json.loads(raw)
        user = {str(name): str(text) for name, text in value["user"].items()}
        return Noted(int(value["size"]), int(value["mtime_ns"]), user)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


class MetadataKeeper:
    """Reads and writes :class:`Noted` of open files.

    Args:
        sidecars: absolute path of the directory of the fallback; made when first needed.
    """

    def __init__(self, sidecars: str) -> None:
        self._sidecars = sidecars

    def write(self, fd: int, noted: Noted) -> None:
        """Attach ``noted`` to the file, which already has the size and mtime that ``noted`` names.

        Without user metadata there is nothing to lose, so the fallback is used only with some.

        Raises:
            OSError: neither way worked.
        """
        raw = noted.dump()
        try:
            os.setxattr(fd, XATTR, raw)
        except OSError as e:
            if e.errno not in _XATTR_UNUSABLE:
                raise
            if noted.user:
                self._write_sidecar(os.fstat(fd), raw)

    def read(self, fd: int, status: os.stat_result) -> Noted | None:
        """What was noted for exactly the bytes that ``status`` describes; ``None`` for a file of another tool."""
        try:
            noted = parse(os.getxattr(fd, XATTR))
        except OSError as e:
            if e.errno not in {errno.ENODATA, errno.ENOTSUP}:
                raise
            noted = self._read_sidecar(status)
        return noted if noted is not None and noted.belongs_to(status) else None

    def forget(self, status: os.stat_result) -> None:
        """Remove the sidecar of a file that lost its name, if it had one."""
        try:
            os.unlink(self._sidecar(status))
        except FileNotFoundError:
            return

    def settled(self, fd: int, status: os.stat_result, now_ns: int) -> bool:
        """Whether any later change of the file will make another etag than ``status`` has now."""
        return not is_recent(status, now_ns) or self.read(fd, status) is not None

    def _sidecar(self, status: os.stat_result) -> str:
        return f"{self._sidecars}/{status.st_ino:x}-{status.st_size:x}-{status.st_mtime_ns:x}"

    def _write_sidecar(self, status: os.stat_result, raw: bytes) -> None:
        os.makedirs(self._sidecars, exist_ok=True)
        fd = os.open(self._sidecar(status), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        try:
            os.write(fd, raw)
            os.fsync(fd)
        finally:
            os.close(fd)
        directory = os.open(self._sidecars, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def _read_sidecar(self, status: os.stat_result) -> Noted | None:
        try:
            with open(self._sidecar(status), "rb") as sidecar:
                return parse(sidecar.read(1 << 16))
        except FileNotFoundError:
            return None
