"""The filesystem's calls, in terms of inodes and handles."""

from __future__ import annotations

import errno
import logging
import os
import stat
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import trio

from ckptfs.errors import CkptfsError, PosixError, StoreError
from ckptfs.namespace.paths import NAME_BYTES_MAX
from ckptfs.types import CloseMode, Ino
from ckptfs.vfs.files import Files, OpenFile, Reader, check_size
from ckptfs.vfs.listing import ForeignAttributes, Listing
from ckptfs.vfs.xattrs import XattrOperations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ckptfs.disk.base import DiskSpace
    from ckptfs.env import Env
    from ckptfs.namespace import Namespace
    from ckptfs.namespace.rows import Inode
    from ckptfs.objectstore.base import ObjectStore
    from ckptfs.staging import Staging

READDIR_PAGE = 512
READDIR_PAGE_S = 0.2
"""Entries that are read ahead at a time, and how long a page may serve."""

REMOVE_INTERVAL_S = 0.2
"""How often staging files of dropped contents are removed."""

log = logging.getLogger(__name__)


class Attributes(NamedTuple):
    """What stat(2) tells: the inode's row (not to be kept) and the live size in bytes."""

    inode: Inode
    size: int


@dataclass(frozen=True, slots=True)
class Changes:
    """Attributes to set; ``None`` leaves one as it is. Times in nanoseconds since the epoch."""

    mode: int | None = None
    uid: int | None = None
    gid: int | None = None
    size: int | None = None
    atime_ns: int | None = None
    mtime_ns: int | None = None
    ctime_ns: int | None = None


NO_CHANGES = Changes()
RECORDED = ("mode", "uid", "gid", "atime_ns", "mtime_ns", "ctime_ns")
"""What the journal's record of a setattr holds: all of it, as it is then."""


@dataclass(slots=True, eq=False)
class Handle:
    """One open of a file."""

    file: OpenFile
    writing: bool


@dataclass(slots=True, eq=False)
class DirectoryHandle:
    """One open of a directory, and the page of entries that was read ahead for it."""

    ino: Ino
    page: list[tuple[int, bytes, Inode]] = field(default_factory=list)
    index: dict[int, int] = field(default_factory=dict)
    read_s: float = 0.0


@dataclass(frozen=True, slots=True)
class VfsOptions:
    """How a filesystem behaves.

    Attributes:
        close_mode: what close(2) of a written file promises.
        refresh_s: how soon changes behind the mount's back are seen, seconds.
        foreign: attributes of what other tools made.
        read_only: refuse every change.
    """

    close_mode: CloseMode
    refresh_s: float
    foreign: ForeignAttributes
    read_only: bool = False


class Vfs:
    """A mounted filesystem without its kernel side.

    Args:
        env: clock and threads.
        namespace: inodes, contents, journal.
        staging: files of contents.
        store: the bucket.
        reader: brings bytes that only the bucket has.
        options: behaviour.
    """

    def __init__(
        self, env: Env, namespace: Namespace, staging: Staging, store: ObjectStore, reader: Reader, options: VfsOptions
    ) -> None:
        self._env = env
        self._namespace = namespace
        self._tree = namespace.tree
        self._state = namespace.state
        self._staging = staging
        self._options = options
        self.files = Files(env, namespace, staging, reader)
        self.xattrs = XattrOperations(namespace, self.files)
        self.name_changed: Callable[[Ino, bytes], None] = lambda _parent, _name: None
        """Set by the driver: the kernel must forget this name."""
        self.listing = Listing(
            env,
            store,
            namespace,
            self.files,
            options.foreign,
            refresh_s=options.refresh_s,
            changed=self._name_changed,
            dropped=self.reap,
        )
        self._handles: dict[int, Handle] = {}
        self._directories: dict[int, DirectoryHandle] = {}
        self._next_handle = 1
        self._lookups: dict[Ino, int] = {}
        self._nursery: trio.Nursery | None = None
        self._finishing = 0
        self._finished = trio.Event()
        self.draining = False
        """Set when the mount accepts no new writers."""

    def _name_changed(self, parent: Ino, name: bytes) -> None:
        self.name_changed(parent, name)

    async def run(self) -> None:
        """Background work.

        Listings, seals of asynchronous closes, removal of dropped staging files. Ends when cancelled.
        """
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self.listing.run)
            while True:
                await self._env.sleep(REMOVE_INTERVAL_S)
                try:
                    await self.files.remove_dropped()
                except (OSError, CkptfsError) as error:
                    log.error("staging files cannot be removed: %s", error)  # noqa: TRY400 - no trace

    async def settle(self) -> None:
        """Return when every close that came before has been sealed."""
        await trio.lowlevel.checkpoint()
        while self._finishing:
            self._finished = trio.Event()
            await self._finished.wait()

    # --- references

    def remember(self, ino: Ino) -> None:
        """The kernel was told of the inode once more."""
        self._lookups[ino] = self._lookups.get(ino, 0) + 1

    def forget(self, forgotten: Iterable[tuple[int, int]]) -> None:
        """The kernel forgets what it was told: (inode, how many times)."""
        for number, count in forgotten:
            ino = Ino(number)
            left = self._lookups.get(ino, 0) - count
            if left > 0:
                self._lookups[ino] = left
            else:
                self._lookups.pop(ino, None)
                self.reap(ino)

    @property
    def remembered_count(self) -> int:
        """Inodes that the kernel knows."""
        return len(self._lookups)

    def reap(self, ino: Ino) -> None:
        """Remove the inode if it has no name, no handle, and the kernel does not know it."""
        if ino in self._lookups or self.files.get(ino) is not None:
            return
        inode = self._state.inodes.get(ino)
        if inode is None or inode.nlink:
            return
        content = inode.content
        self._tree.reap(ino)
        self.files.drop_if_unused(content)

    # --- attributes and names

    def attributes(self, ino: Ino) -> Attributes:
        """Attributes of an inode."""
        return self._attributes(self._tree.inode(ino))

    def _attributes(self, inode: Inode) -> Attributes:
        file = self.files.get(inode.ino)
        return Attributes(inode, inode.size if file is None else file.size)

    async def lookup(self, parent: Ino, name: bytes) -> Attributes | None:
        """What a name leads to, or ``None``."""
        if len(name) > NAME_BYTES_MAX:
            raise PosixError(errno.ENAMETOOLONG)
        directory = self._tree.inode(parent)
        if not self.listing.is_fresh(directory):
            try:
                await self.listing.look(directory)
            except StoreError:
                if self._tree.dentry(parent, name) is None:
                    raise
        inode = self._tree.lookup(parent, name)
        return None if inode is None else self._attributes(inode)

    def opendir(self, ino: Ino) -> int:
        """Open a directory; gives the handle."""
        number = self._next_handle
        self._next_handle += 1
        self._directories[number] = DirectoryHandle(ino)
        return number

    def releasedir(self, handle: int) -> None:
        """Close a directory."""
        self._directories.pop(handle, None)

    async def readdir(self, handle: int, after: int) -> Iterator[tuple[int, bytes, Attributes]]:
        """Entries behind position ``after``; none at the end. Positions stay valid while entries come and go.

        Entries are read ahead in pages; one that was removed since is left out, one that changed is given as it is.
        """
        directory = self._directories.get(handle)
        if directory is None:
            raise PosixError(errno.EBADF)
        if after == 0:
            inode = self._tree.inode(directory.ino)
            if not self.listing.is_fresh(inode):
                await self.listing.look(inode)
        now_s = self._env.monotonic_s()
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
            yield position, name, self._attributes(read if inode is None else inode)

    def _may_change(self) -> None:
        if self._options.read_only or self.draining:
            raise PosixError(errno.EROFS)
        self._state.check()

    async def _make(
        self, parent: Ino, name: bytes, mode: int, uid: int, gid: int, *, rdev: int = 0, target: bytes | None = None
    ) -> Inode:
        self._may_change()
        await self._state.throttle()
        mode, attributes = self.xattrs.inherit(parent, mode)
        inode = self._tree.create(parent, name, mode, uid, gid, rdev=rdev, target=target, xattrs=attributes)
        if inode.is_dir:
            self.listing.born(inode.ino)
        return inode

    async def mkdir(self, parent: Ino, name: bytes, mode: int, uid: int, gid: int) -> Attributes:
        """Make a directory."""
        return self._attributes(await self._make(parent, name, stat.S_IFDIR | stat.S_IMODE(mode), uid, gid))

    async def symlink(self, parent: Ino, name: bytes, target: bytes, uid: int, gid: int) -> Attributes:
        """Make a symbolic link."""
        return self._attributes(await self._make(parent, name, stat.S_IFLNK | 0o777, uid, gid, target=target))

    async def mknod(self, parent: Ino, name: bytes, mode: int, rdev: int, uid: int, gid: int) -> Attributes:
        """Make a file, fifo, socket or device."""
        inode = await self._make(parent, name, mode, uid, gid, rdev=rdev)
        if inode.is_file:
            file = self.files.acquire(inode, writing=True)
            file.generation = 1
            await self._finish(file)
        return self.attributes(inode.ino)

    def readlink(self, ino: Ino) -> bytes:
        """Target of a symbolic link."""
        target = self._tree.inode(ino).target
        if target is None:
            raise PosixError(errno.EINVAL)
        return target

    async def link(self, ino: Ino, parent: Ino, name: bytes) -> Attributes:
        """Give a file another name."""
        self._may_change()
        await self._state.throttle()
        return self._attributes(self._tree.link(ino, parent, name))

    async def unlink(self, parent: Ino, name: bytes) -> None:
        """Remove a name."""
        self._may_change()
        await self._state.throttle()
        self.reap(self._tree.unlink(parent, name).ino)

    async def rmdir(self, parent: Ino, name: bytes) -> None:
        """Remove an empty directory."""
        self._may_change()
        await self._state.throttle()
        await self._know_children(self._tree.lookup(parent, name))
        self.reap(self._tree.rmdir(parent, name).ino)

    async def _know_children(self, inode: Inode | None) -> None:
        """List a directory whose emptiness is about to matter and was never looked at."""
        if inode is not None and inode.is_dir and not inode.listed:
            await self.listing.look(inode)

    async def rename(self, parent: Ino, name: bytes, new_parent: Ino, new_name: bytes, flags: int) -> None:
        """Rename, atomically.

        Bytes that an open writer has handed over are durable before the name flips (unless ``--close=async``).
        """
        self._may_change()
        await self._state.throttle()
        await self._know_children(self._tree.lookup(new_parent, new_name))
        for source in (self._tree.lookup(parent, name), self._tree.lookup(new_parent, new_name) if flags else None):
            if source is None:
                continue
            if source.is_dir:
                await self.listing.complete_below(source)
            elif self._options.close_mode is CloseMode.SYNC:
                await self._sync_if_written(source.ino)
        replaced = self._tree.rename(parent, name, new_parent, new_name, flags)
        if replaced is not None:
            self.reap(replaced.ino)

    async def _sync_if_written(self, ino: Ino) -> None:
        file = self.files.get(ino)
        if file is not None and file.generation > file.durable_generation:
            await self.files.sync(file)

    async def setattr(self, ino: Ino, changes: Changes, *, handle: int | None = None) -> Attributes:
        """Set attributes. Nothing to set (chown(2) to -1, -1) changes nothing."""
        if self._options.read_only:
            raise PosixError(errno.EROFS)
        self._state.check()
        if changes.size is not None:
            await self._set_size(ino, changes.size, handle)
        inode = self._tree.inode(ino)
        if changes == NO_CHANGES:
            return self._attributes(inode)
        now = self._env.wall_ns()
        if changes.mode is not None:
            inode.mode = stat.S_IFMT(inode.mode) | stat.S_IMODE(changes.mode)
            self.xattrs.chmod_acl(inode)
        inode.uid = inode.uid if changes.uid is None else changes.uid
        inode.gid = inode.gid if changes.gid is None else changes.gid
        inode.atime_ns = inode.atime_ns if changes.atime_ns is None else changes.atime_ns
        if changes.mtime_ns is not None:
            inode.mtime_ns = changes.mtime_ns
        elif changes.size is not None:
            inode.mtime_ns = now
        inode.ctime_ns = now if changes.ctime_ns is None else changes.ctime_ns
        self._state.inodes.mark(ino)
        self._state.record("setattr", ino=ino, **{name: getattr(inode, name) for name in RECORDED})
        return self._attributes(inode)

    async def _set_size(self, ino: Ino, size: int, handle: int | None) -> None:
        check_size(size)
        if handle is not None and (opened := self._handles.get(handle)) is not None and opened.writing:
            await self.files.truncate(opened.file, size)
            return
        inode = self._tree.inode(ino)
        if inode.is_dir:
            raise PosixError(errno.EISDIR)
        if size == 0:
            self._shield_readers(ino)
        file = self.files.acquire(inode, writing=True)
        try:
            await self.files.truncate(file, size)
        finally:
            await self._finish(file)

    def _shield_readers(self, ino: Ino) -> None:
        """A file is about to be emptied that others are reading: they keep the inode, its names get a new one.

        The caller gets ESTALE, on which the kernel looks the name up again and meets the new inode (``retry_estale``
        in the kernel's fs/namei.c and fs/open.c).
        """
        file = self.files.get(ino)
        inode = self._tree.inode(ino)
        if file is None or file.writers or inode.nlink == 0:
            return
        for parent, name in self._tree.names_of(inode):
            self.name_changed(parent, name)
        self._tree.supersede(ino)
        raise PosixError(errno.ESTALE)

    # --- files

    def _new_handle(self, file: OpenFile, *, writing: bool) -> int:
        number = self._next_handle
        self._next_handle += 1
        self._handles[number] = Handle(file, writing)
        return number

    def _handle(self, number: int) -> Handle:
        handle = self._handles.get(number)
        if handle is None:
            raise PosixError(errno.EBADF)
        return handle

    async def open(self, ino: Ino, flags: int) -> int:
        """Open a file; gives the handle. ``O_TRUNC`` begins a new content (see :mod:`ckptfs.vfs.files`)."""
        inode = self._tree.inode(ino)
        if not inode.is_file:
            raise PosixError(errno.EISDIR if inode.is_dir else errno.EINVAL)
        writing = flags & os.O_ACCMODE != os.O_RDONLY
        truncating = bool(flags & os.O_TRUNC)
        if writing or truncating:
            self._may_change()
        if truncating:
            self._shield_readers(ino)
        file = self.files.acquire(inode, writing=writing or truncating)
        if truncating:
            try:
                await self.files.begin_empty(file)
            except BaseException:
                with trio.CancelScope(shield=True):
                    await self.files.release(file, writing=True)
                raise
            self._touch_mtime(ino)
        return self._new_handle(file, writing=writing or truncating)

    async def create(
        self, parent: Ino, name: bytes, mode: int, flags: int, uid: int, gid: int
    ) -> tuple[int, Attributes]:
        """Make a file and open it; gives handle and attributes."""
        existing = self._tree.lookup(parent, name)
        if existing is not None and not flags & os.O_EXCL:
            ino = existing.ino
            return await self.open(ino, flags), self.attributes(ino)
        inode = await self._make(parent, name, stat.S_IFREG | stat.S_IMODE(mode), uid, gid)
        file = self.files.acquire(inode, writing=True)
        file.generation = 1
        return self._new_handle(file, writing=True), self._attributes(inode)

    async def read(self, handle: int, offset: int, length: int) -> bytes:
        """Bytes at ``offset``; fewer than ``length`` only at the end."""
        return await self.files.read(self._handle(handle).file, offset, length)

    async def write(self, handle: int, offset: int, data: bytes) -> int:
        """Write all of ``data``; gives its length."""
        opened = self._handle(handle)
        self._state.check()
        check_size(offset + len(data))
        await self.files.write(opened.file, offset, data)
        self._touch_mtime(opened.file.ino)
        return len(data)

    def _touch_mtime(self, ino: Ino) -> None:
        inode = self._tree.inode(ino)
        inode.mtime_ns = inode.ctime_ns = self._env.wall_ns()
        self._state.inodes.mark(ino)
        self._state.touch()

    async def flush(self, handle: int) -> None:
        """A descriptor of the handle was closed.

        With ``--close=sync`` what was written through it is durable when this returns. Comes once for every close of
        every duplicate, in every forked process; never publishes, since others may go on writing.
        """
        opened = self._handle(handle)
        file = opened.file
        if not opened.writing:
            await trio.lowlevel.checkpoint()
            return
        if file.error is not None:
            raise file.error
        if (
            self._options.close_mode is CloseMode.ASYNC
            or file.generation <= file.durable_generation
            or self._tree.inode(file.ino).nlink == 0
        ):
            await trio.lowlevel.checkpoint()
        elif file.writers == 1:
            await self.files.seal(file, durable=True)
        else:
            await self.files.sync(file)

    async def release(self, handle: int) -> None:
        """The last duplicate of the handle is closed. The last writer's close has the file published."""
        opened = self._handles.pop(handle)
        file = opened.file
        if not opened.writing:
            await self.files.release(file, writing=False)
            self.reap(file.ino)
        elif self._options.close_mode is CloseMode.ASYNC and self._nursery is not None:
            self._finishing += 1
            self._nursery.start_soon(self._finish_and_report, file)
        else:
            await self._finish(file)

    async def _finish_and_report(self, file: OpenFile) -> None:
        self._finishing -= 1
        try:
            await self._finish(file)
        except (OSError, CkptfsError) as error:
            log.error("inode %s could not be sealed after its close: %s", file.ino, error)  # noqa: TRY400 - no trace

    async def _finish(self, file: OpenFile) -> None:
        """End one writer: seal and publish if it was the last."""
        with trio.CancelScope(shield=True):
            self._finishing += 1
            try:
                inode = self._state.inodes.get(file.ino)
                if file.writers == 1 and inode is not None and inode.nlink:
                    await self._seal_last(file)
            finally:
                self._finishing -= 1
                if not self._finishing:
                    self._finished.set()
                await self.files.release(file, writing=True)
                self.reap(file.ino)

    async def _seal_last(self, file: OpenFile) -> None:
        if file.error is not None:
            self.files.give_up(file)
            return
        try:
            if file.generation > file.sealed_generation:
                await self.files.seal(file, durable=self._options.close_mode is CloseMode.SYNC)
        except (OSError, CkptfsError):
            self.files.give_up(file)
            raise
        if file.writers == 1 and file.generation == file.sealed_generation:
            self.files.oblige(file)

    async def fsync(self, handle: int) -> None:
        """Make the file, and every change of the namespace before, durable."""
        await self.files.sync(self._handle(handle).file)

    async def fsyncdir(self) -> None:
        """Make every change of the namespace durable."""
        await self._state.sync()

    async def space(self) -> DiskSpace:
        """Space for new bytes: that of the disk under the cache directory."""
        return await self._staging.disk.space(self._staging.root)
