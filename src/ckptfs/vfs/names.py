"""Calls on names and directories."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from ckptfs.errors import PosixError, StoreError
from ckptfs.namespace.paths import NAME_BYTES_MAX
from ckptfs.types import CloseMode, Ino

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckptfs.namespace.rows import Inode
    from ckptfs.vfs.core import Attributes, Core
    from ckptfs.vfs.io import FileCalls
    from ckptfs.vfs.listing import Listing
    from ckptfs.vfs.xattrs import XattrCalls

READDIR_PAGE = 512
READDIR_PAGE_S = 0.2
"""Entries that are read ahead at a time, and how long a page may serve."""


@dataclass(slots=True, eq=False)
class DirectoryHandle:
    """One open of a directory, and the page of entries that was read ahead for it."""

    ino: Ino
    page: list[tuple[int, bytes, Inode]] = field(default_factory=list)
    index: dict[int, int] = field(default_factory=dict)
    read_s: float = 0.0


class NameCalls:
    """Lookup, readdir, and everything that makes, removes or moves names.

    Args:
        core: shared state.
        listing: what the bucket has.
        xattrs: for inherited ACLs.
        io: to bring the bytes of renamed files to the disk.
    """

    def __init__(self, core: Core, listing: Listing, xattrs: XattrCalls, io: FileCalls) -> None:
        self._core = core
        self._tree = core.tree
        self._state = core.state
        self._listing = listing
        self._xattrs = xattrs
        self._io = io
        self._directories: dict[int, DirectoryHandle] = {}
        self._next_handle = 1

    async def lookup(self, parent: Ino, name: bytes) -> Attributes | None:
        """What a name leads to, or ``None``."""
        if len(name) > NAME_BYTES_MAX:
            raise PosixError(errno.ENAMETOOLONG)
        directory = self._tree.inode(parent)
        if not self._listing.is_fresh(directory):
            try:
                await self._listing.look(directory)
            except StoreError:
                if self._tree.dentry(parent, name) is None:
                    raise
        inode = self._tree.lookup(parent, name)
        return None if inode is None else self._core.attributes_of(inode)

    def opendir(self, ino: Ino) -> int:
        """Open a directory; gives the handle."""
        number = self._next_handle
        self._next_handle += 1
        self._directories[number] = DirectoryHandle(ino)
        return number

    def releasedir(self, handle: int) -> None:
        """Close a directory."""
        self._directories.pop(handle, None)

    def dots(self, handle: int) -> list[tuple[bytes, Attributes]]:
        """The entries ``.`` and ``..`` of an open directory; a removed one has none."""
        inode = self._tree.inode(self._directories[handle].ino)
        if not inode.nlink:
            return []
        return [(b".", self._core.attributes_of(inode)), (b"..", self._core.attributes(inode.parent))]

    async def readdir(self, handle: int, after: int) -> Iterator[tuple[int, bytes, Attributes]]:
        """Entries behind position ``after``; none at the end. Positions stay valid while entries come and go.

        Entries are read ahead in pages; one that was removed since is left out, one that changed is given as it is.
        """
        directory = self._directories.get(handle)
        if directory is None:
            raise PosixError(errno.EBADF)
        if after == 0:
            inode = self._tree.inode(directory.ino)
            if not self._listing.is_fresh(inode):
                await self._listing.look(inode)
        now_s = self._core.env.monotonic_s()
        page = directory.page
        start = directory.index.get(after, -1) + 1
        if after == 0 or not start or start >= len(page) or now_s > directory.read_s + READDIR_PAGE_S:
            page = directory.page = self._tree.readdir(directory.ino, after, READDIR_PAGE)
            directory.index = {position: index for index, (position, _, _) in enumerate(page)}
            directory.read_s, start = now_s, 0
        return self._current(directory.ino, page, start)

    def _current(
        self, parent: Ino, page: list[tuple[int, bytes, Inode]], start: int
    ) -> Iterator[tuple[int, bytes, Attributes]]:
        for position, name, read in islice(page, start, None):
            known, dentry = self._state.dentries.peek((parent, name))
            if known and (dentry is None or dentry.id != position):
                continue
            known, inode = self._state.inodes.peek(read.ino if dentry is None else dentry.ino)
            yield position, name, self._core.attributes_of(read if inode is None else inode)

    async def make(
        self, parent: Ino, name: bytes, mode: int, uid: int, gid: int, *, rdev: int = 0, target: bytes | None = None
    ) -> Inode:
        self._core.may_change()
        await self._state.throttle()
        mode, attributes = self._xattrs.inherit(parent, mode)
        inode = self._tree.create(parent, name, mode, uid, gid, rdev=rdev, target=target, xattrs=attributes)
        if inode.is_dir:
            self._listing.born(inode.ino)
        return inode

    async def mkdir(self, parent: Ino, name: bytes, mode: int, uid: int, gid: int) -> Attributes:
        """Make a directory."""
        return self._core.attributes_of(await self.make(parent, name, stat.S_IFDIR | stat.S_IMODE(mode), uid, gid))

    async def symlink(self, parent: Ino, name: bytes, target: bytes, uid: int, gid: int) -> Attributes:
        """Make a symbolic link."""
        return self._core.attributes_of(await self.make(parent, name, stat.S_IFLNK | 0o777, uid, gid, target=target))

    async def mknod(self, parent: Ino, name: bytes, mode: int, rdev: int, uid: int, gid: int) -> Attributes:
        """Make a file, fifo, socket or device."""
        inode = await self.make(parent, name, mode, uid, gid, rdev=rdev)
        if inode.is_file:
            await self._io.finish_new(inode)
        return self._core.attributes(inode.ino)

    async def create(
        self, parent: Ino, name: bytes, mode: int, flags: int, uid: int, gid: int
    ) -> tuple[int, Attributes]:
        """Make a file and open it, or open the one that is there (unless ``O_EXCL``); gives handle and attributes."""
        existing = self._tree.lookup(parent, name)
        if existing is not None and not flags & os.O_EXCL:
            ino = existing.ino
            return await self._io.open(ino, flags, uid), self._core.attributes(ino)
        inode = await self.make(parent, name, stat.S_IFREG | stat.S_IMODE(mode), uid, gid)
        return self._io.open_new(inode), self._core.attributes_of(inode)

    def readlink(self, ino: Ino) -> bytes:
        """Target of a symbolic link."""
        target = self._tree.inode(ino).target
        if target is None:
            raise PosixError(errno.EINVAL)
        return target

    async def link(self, ino: Ino, parent: Ino, name: bytes) -> Attributes:
        """Give a file another name."""
        self._core.may_change()
        await self._state.throttle()
        return self._core.attributes_of(self._tree.link(ino, parent, name))

    async def unlink(self, parent: Ino, name: bytes) -> None:
        """Remove a name."""
        self._core.may_change()
        await self._state.throttle()
        self._core.reap(self._tree.unlink(parent, name).ino)

    async def rmdir(self, parent: Ino, name: bytes) -> None:
        """Remove an empty directory."""
        self._core.may_change()
        await self._state.throttle()
        await self._know_children(self._tree.lookup(parent, name))
        self._core.reap(self._tree.rmdir(parent, name).ino)

    async def _know_children(self, inode: Inode | None) -> None:
        """List a directory whose emptiness is about to matter and was never looked at."""
        if inode is not None and inode.is_dir and not inode.listed:
            await self._listing.look(inode)

    async def rename(self, parent: Ino, name: bytes, new_parent: Ino, new_name: bytes, flags: int) -> None:
        """Rename, atomically.

        Bytes that an open writer has handed over are durable before the name flips (unless ``--close=async``).
        """
        self._core.may_change()
        await self._state.throttle()
        await self._know_children(self._tree.lookup(new_parent, new_name))
        for source in (self._tree.lookup(parent, name), self._tree.lookup(new_parent, new_name) if flags else None):
            if source is None:
                continue
            if source.is_dir:
                await self._listing.complete_below(source)
            elif self._core.options.close_mode is CloseMode.SYNC:
                await self._io.sync_if_written(source.ino)
        replaced = self._tree.rename(parent, name, new_parent, new_name, flags)
        if replaced is not None:
            self._core.reap(replaced.ino)

    async def fsyncdir(self) -> None:
        """Make every change of the namespace durable."""
        await self._state.sync()
