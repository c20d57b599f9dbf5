"""FUSE requests as calls of the filesystem, and its answers as FUSE's.

An exception that is no answer is EIO for that call, logged and counted; pyfuse3 would end the session on it.
"""

from __future__ import annotations

import errno
import logging
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import pyfuse3

from ckptfs.errors import CkptfsError, PosixError
from ckptfs.types import Ino
from ckptfs.vfs import Changes

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from ckptfs.vfs import Attributes, Vfs

DOT_COUNT = 2
"""Entries ``.`` and ``..`` stand before all others in a listing."""

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


def _errno_of(error: BaseException, failures: dict[str, int], call: str) -> int:
    """The errno to answer ``error`` with; what is not POSIX's answer is logged and counted."""
    if isinstance(error, PosixError):
        return error.errno
    failures[call] = failures.get(call, 0) + 1
    if isinstance(error, CkptfsError):
        log.error("%s failed: %s", call, error)
        return error.errno
    if isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.EIO}:
        log.error("%s failed: the disk of the cache directory says: %s", call, error)
        return error.errno
    log.error("%s failed unexpectedly", call, exc_info=error)
    return errno.EIO


def _answering(method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Turn exceptions of a handler into the answer of its call."""
    name = method.__name__

    @wraps(method)
    async def handler(*args: P.args, **kwargs: P.kwargs) -> T:
        operations: Any = args[0]
        operations.request_count += 1
        try:
            return await method(*args, **kwargs)
        except pyfuse3.FUSEError:
            raise
        except Exception as error:
            raise pyfuse3.FUSEError(_errno_of(error, operations.failures, name)) from error

    return handler


class Operations(pyfuse3.Operations):
    """The handlers.

    Args:
        vfs: the filesystem.
        timeout_s: how long the kernel may keep names and attributes, seconds.
    """

    enable_writeback_cache = True
    enable_acl = True
    supports_dot_lookup = False

    def __init__(self, vfs: Vfs, *, timeout_s: float) -> None:
        super().__init__()
        self._vfs = vfs
        self._timeout_s = timeout_s
        self.request_count = 0
        """Requests that came in."""
        self.failures: dict[str, int] = {}
        """Calls that failed for another reason than POSIX's, by call."""

    def _entry(self, attributes: Attributes) -> pyfuse3.EntryAttributes:
        inode, size, allocated = attributes
        entry = pyfuse3.EntryAttributes()
        entry.st_ino = inode.ino
        entry.generation = 0
        entry.entry_timeout = self._timeout_s
        entry.attr_timeout = self._timeout_s
        entry.st_mode = inode.mode
        entry.st_nlink = inode.nlink
        entry.st_uid = inode.uid
        entry.st_gid = inode.gid
        entry.st_rdev = inode.rdev
        entry.st_size = size
        entry.st_blksize = 1 << 20
        entry.st_blocks = (allocated + 511) >> 9
        entry.st_atime_ns = inode.atime_ns
        entry.st_mtime_ns = inode.mtime_ns
        entry.st_ctime_ns = inode.ctime_ns
        return entry

    def _remembered(self, attributes: Attributes) -> pyfuse3.EntryAttributes:
        self._vfs.core.remember(attributes.inode.ino)
        return self._entry(attributes)

    # --- names

    @_answering
    async def lookup(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        found = await self._vfs.names.lookup(Ino(parent_inode), name)
        if found is None:
            absent = pyfuse3.EntryAttributes()
            absent.st_ino = 0
            absent.entry_timeout = self._timeout_s
            return absent
        return self._remembered(found)

    async def forget(self, inode_list: Sequence[tuple[int, int]]) -> None:
        try:
            self._vfs.core.forget(inode_list)
        except Exception as error:  # noqa: BLE001 - forget has no answer; it is logged and counted
            _errno_of(error, self.failures, "forget")

    @_answering
    async def getattr(self, inode: int, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        return self._entry(self._vfs.core.attributes(Ino(inode)))

    @_answering
    async def setattr(
        self,
        inode: int,
        attr: pyfuse3.EntryAttributes,
        fields: pyfuse3.SetattrFields,
        fh: int | None,
        ctx: pyfuse3.RequestContext,
    ) -> pyfuse3.EntryAttributes:
        changes = Changes(
            mode=attr.st_mode if fields.update_mode else None,
            uid=attr.st_uid if fields.update_uid else None,
            gid=attr.st_gid if fields.update_gid else None,
            size=attr.st_size if fields.update_size else None,
            atime_ns=attr.st_atime_ns if fields.update_atime else None,
            mtime_ns=attr.st_mtime_ns if fields.update_mtime else None,
            ctime_ns=attr.st_ctime_ns if fields.update_ctime else None,
        )
        return self._entry(await self._vfs.io.setattr(Ino(inode), changes, handle=fh))

    @_answering
    async def readlink(self, inode: int, ctx: pyfuse3.RequestContext) -> bytes:
        return self._vfs.names.readlink(Ino(inode))

    @_answering
    async def mknod(
        self, parent_inode: int, name: bytes, mode: int, rdev: int, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        return self._remembered(await self._vfs.names.mknod(Ino(parent_inode), name, mode, rdev, ctx.uid, ctx.gid))

    @_answering
    async def mkdir(
        self, parent_inode: int, name: bytes, mode: int, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        return self._remembered(await self._vfs.names.mkdir(Ino(parent_inode), name, mode, ctx.uid, ctx.gid))

    @_answering
    async def unlink(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        await self._vfs.names.unlink(Ino(parent_inode), name)

    @_answering
    async def rmdir(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        await self._vfs.names.rmdir(Ino(parent_inode), name)

    @_answering
    async def symlink(
        self, parent_inode: int, name: bytes, target: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        return self._remembered(await self._vfs.names.symlink(Ino(parent_inode), name, target, ctx.uid, ctx.gid))

    @_answering
    async def rename(
        self,
        parent_inode_old: int,
        name_old: bytes,
        parent_inode_new: int,
        name_new: bytes,
        flags: int,
        ctx: pyfuse3.RequestContext,
    ) -> None:
        await self._vfs.names.rename(Ino(parent_inode_old), name_old, Ino(parent_inode_new), name_new, flags)

    @_answering
    async def link(
        self, inode: int, new_parent_inode: int, new_name: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        return self._remembered(await self._vfs.names.link(Ino(inode), Ino(new_parent_inode), new_name))

    # --- files

    @_answering
    async def open(self, inode: int, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        return pyfuse3.FileInfo(fh=await self._vfs.io.open(Ino(inode), flags, ctx.uid), keep_cache=True)

    @_answering
    async def create(
        self, parent_inode: int, name: bytes, mode: int, flags: int, ctx: pyfuse3.RequestContext
    ) -> tuple[pyfuse3.FileInfo, pyfuse3.EntryAttributes]:
        handle, attributes = await self._vfs.names.create(Ino(parent_inode), name, mode, flags, ctx.uid, ctx.gid)
        return pyfuse3.FileInfo(fh=handle, keep_cache=True), self._remembered(attributes)

    @_answering
    async def read(self, fh: int, off: int, size: int) -> bytes:
        return await self._vfs.io.read(fh, off, size)

    @_answering
    async def write(self, fh: int, off: int, buf: bytes) -> int:
        return await self._vfs.io.write(fh, off, buf)

    @_answering
    async def flush(self, fh: int) -> None:
        if not self._vfs.io.close_waits:
            # The kernel asks no more; it still writes dirty pages back at each close, and reports what that met.
            raise pyfuse3.FUSEError(errno.ENOSYS)
        await self._vfs.io.flush(fh)

    @_answering
    async def release(self, fh: int) -> None:
        await self._vfs.io.release(fh)

    @_answering
    async def fsync(self, fh: int, datasync: bool) -> None:  # noqa: FBT001 - pyfuse3's signature
        await self._vfs.io.fsync(fh)

    # --- directories

    @_answering
    async def opendir(self, inode: int, ctx: pyfuse3.RequestContext) -> int:
        return self._vfs.names.opendir(Ino(inode))

    @_answering
    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        names = self._vfs.names
        entries = await names.readdir(fh, max(0, start_id - DOT_COUNT))
        for position, (name, attributes) in enumerate(names.dots(fh), start=1):
            # The kernel does not remember what these two lead to, so neither do we.
            if position > start_id and not pyfuse3.readdir_reply(token, name, self._entry(attributes), position):
                return
        for position, name, attributes in entries:
            if not pyfuse3.readdir_reply(token, name, self._entry(attributes), position + DOT_COUNT):
                return
            self._vfs.core.remember(attributes.inode.ino)

    @_answering
    async def releasedir(self, fh: int) -> None:
        self._vfs.names.releasedir(fh)

    @_answering
    async def fsyncdir(self, fh: int, datasync: bool) -> None:  # noqa: FBT001 - pyfuse3's signature
        await self._vfs.names.fsyncdir()

    @_answering
    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        space = await self._vfs.space()
        data = pyfuse3.StatvfsData()
        data.f_bsize = data.f_frsize = 4096
        data.f_blocks = space.total_bytes // 4096
        data.f_bfree = data.f_bavail = space.free_bytes // 4096
        data.f_files = space.total_inodes
        data.f_ffree = data.f_favail = space.free_inodes
        data.f_namemax = 255
        return data

    # --- extended attributes

    @_answering
    async def getxattr(self, inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> bytes:
        return self._vfs.xattrs.get(Ino(inode), name)

    @_answering
    async def setxattr(self, inode: int, name: bytes, value: bytes, ctx: pyfuse3.RequestContext) -> None:
        self._vfs.xattrs.set(Ino(inode), name, value)

    @_answering
    async def listxattr(self, inode: int, ctx: pyfuse3.RequestContext) -> Sequence[bytes]:
        return self._vfs.xattrs.list(Ino(inode))

    @_answering
    async def removexattr(self, inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        self._vfs.xattrs.remove(Ino(inode), name)

    def stacktrace(self) -> None:
        """Not offered: any user could fill the log with it."""
