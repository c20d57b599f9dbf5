"""Calls on open files, and attributes that concern their bytes."""

from __future__ import annotations

import errno
import logging
import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from ckptfs.errors import CkptfsError, PosixError
from ckptfs.types import CloseMode, Ino
from ckptfs.vfs.data import check_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from ckptfs.namespace.rows import Inode
    from ckptfs.vfs.core import Attributes, Core
    from ckptfs.vfs.data import FileData
    from ckptfs.vfs.openfile import OpenFile
    from ckptfs.vfs.sealing import Sealer
    from ckptfs.vfs.xattrs import XattrCalls

log = logging.getLogger(__name__)


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


class FileCalls:
    """Open, read, write, close, sync, truncate, setattr.

    Args:
        core: shared state.
        data: bytes of open files.
        sealer: syncs and seals.
        xattrs: for ACLs that follow the mode.
        name_changed: has the kernel forget a name; returns when it has. Blocks.
    """

    def __init__(
        self,
        core: Core,
        data: FileData,
        sealer: Sealer,
        xattrs: XattrCalls,
        name_changed: Callable[[Ino, bytes], None],
    ) -> None:
        self._core = core
        self._tree = core.tree
        self._state = core.state
        self._files = core.files
        self._data = data
        self._sealer = sealer
        self._xattrs = xattrs
        self._name_changed = name_changed
        self._handles: dict[int, Handle] = {}
        self._next_handle = 1
        self._nursery: trio.Nursery | None = None
        self._finishing = 0
        self._finished = trio.Event()

    async def run(self) -> None:
        """Home of the seals of asynchronous closes; ends when cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            await trio.sleep_forever()

    async def settle(self) -> None:
        """Return when every close that came before has been sealed."""
        await trio.lowlevel.checkpoint()
        while self._finishing:
            self._finished = trio.Event()
            await self._finished.wait()

    async def setattr(self, ino: Ino, changes: Changes, *, handle: int | None = None) -> Attributes:
        """Set attributes. Nothing to set (chown(2) to -1, -1) changes nothing."""
        if self._core.options.read_only:
            raise PosixError(errno.EROFS)
        self._state.check()
        if changes.size is not None:
            await self._set_size(ino, changes.size, handle)
        inode = self._tree.inode(ino)
        if changes == NO_CHANGES:
            return self._core.attributes_of(inode)
        now = self._core.env.wall_ns()
        if changes.mode is not None:
            inode.mode = stat.S_IFMT(inode.mode) | stat.S_IMODE(changes.mode)
            self._xattrs.chmod_acl(inode)
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
        return self._core.attributes_of(inode)

    async def _set_size(self, ino: Ino, size: int, handle: int | None) -> None:
        check_size(size)
        if handle is not None and (opened := self._handles.get(handle)) is not None and opened.writing:
            await self._data.truncate(opened.file, size)
            return
        inode = self._tree.inode(ino)
        if inode.is_dir:
            raise PosixError(errno.EISDIR)
        if size == 0:
            await self._shield_readers(ino)
        file = self._files.acquire(self._tree.inode(ino), writing=True)
        try:
            await self._data.truncate(file, size)
        finally:
            self._leave(file)
            await self._finish(file)

    async def _shield_readers(self, ino: Ino) -> None:
        """A file is about to be emptied that others are reading: they keep the inode, its names get a new one.

        The caller gets ESTALE, on which the kernel looks the name up again and meets the new inode (``retry_estale``
        in the kernel's fs/namei.c and fs/open.c).
        """
        file = self._files.get(ino)
        while file is not None and file.handles > file.writers == file.leaving > 0:
            # Writers that have closed are no writers: let their bytes be sealed, and look again.
            await file.left.wait()
            file = self._files.get(ino)
        inode = self._tree.inode(ino)
        if file is None or file.writers or inode.nlink == 0:
            return
        names = self._tree.names_of(inode)
        self._tree.supersede(ino)
        if len(names) > 1:
            # Only the name that was opened is looked up again by itself.
            for parent, name in names:
                await self._core.env.run_blocking(self._name_changed, parent, name)
        raise PosixError(errno.ESTALE)

    async def sync_if_written(self, ino: Ino) -> None:
        """Make durable what an open writer has handed over."""
        file = self._files.get(ino)
        if file is not None and file.generation > file.durable_generation:
            await self._sealer.sync(file)

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

    async def open(self, ino: Ino, flags: int, uid: int) -> int:
        """Open a file; gives the handle. ``O_TRUNC`` begins a new content (see :mod:`ckptfs.vfs.files`)."""
        inode = self._tree.inode(ino)
        if not inode.is_file:
            raise PosixError(errno.EISDIR if inode.is_dir else errno.EINVAL)
        writing = flags & os.O_ACCMODE != os.O_RDONLY
        truncating = bool(flags & os.O_TRUNC)
        if writing or truncating:
            self._core.may_change()
            await self._state.throttle()
            inode = self._tree.inode(ino)
        if truncating:
            await self._shield_readers(ino)
            inode = self._tree.inode(ino)
        file = self._files.acquire(inode, writing=writing or truncating)
        if truncating:
            try:
                await self._data.begin_empty(file)
            except BaseException:
                with trio.CancelScope(shield=True):
                    await self._files.release(file, writing=True)
                raise
            self._truncated(ino, uid)
        return self._new_handle(file, writing=writing or truncating)

    def _truncated(self, ino: Ino, uid: int) -> None:
        """What truncating at open(2) does beside the bytes: the kernel leaves all of it to the filesystem then.

        Of a file that somebody else than root truncates the set-id bits go (POSIX; the group's only where the group
        may execute, as in the kernel's ``setattr_should_drop_suidgid``).
        """
        self._touch_mtime(ino)
        inode = self._tree.inode(ino)
        if uid and inode.mode & (stat.S_ISUID | stat.S_ISGID):
            inode.mode &= ~stat.S_ISUID
            if inode.mode & stat.S_IXGRP:
                inode.mode &= ~stat.S_ISGID
            self._state.record("setattr", ino=ino, mode=inode.mode)

    def open_new(self, inode: Inode) -> int:
        """Open a file that was just made, for writing; gives the handle. Closing it unwritten publishes it empty."""
        file = self._files.acquire(inode, writing=True)
        file.generation = 1
        return self._new_handle(file, writing=True)

    async def read(self, handle: int, offset: int, length: int) -> bytes:
        """Bytes at ``offset``; fewer than ``length`` only at the end."""
        return await self._data.read(self._handle(handle).file, offset, length)

    async def write(self, handle: int, offset: int, data: bytes) -> int:
        """Write all of ``data``; gives its length."""
        opened = self._handle(handle)
        self._state.check()
        check_size(offset + len(data))
        await self._data.write(opened.file, offset, data)
        self._touch_mtime(opened.file.ino)
        return len(data)

    def _touch_mtime(self, ino: Ino) -> None:
        inode = self._tree.inode(ino)
        inode.mtime_ns = inode.ctime_ns = self._core.env.wall_ns()
        self._state.inodes.mark(ino)
        self._state.touch()

    @property
    def close_waits(self) -> bool:
        """Whether :meth:`flush` has anything to do; else it need not be called."""
        return self._core.options.close_mode is CloseMode.SYNC

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
            self._core.options.close_mode is CloseMode.ASYNC
            or file.generation <= file.durable_generation
            or self._tree.inode(file.ino).nlink == 0
        ):
            await trio.lowlevel.checkpoint()
        elif file.writers == 1:
            await self._sealer.seal(file, durable=True)
        else:
            await self._sealer.sync(file)

    async def release(self, handle: int) -> None:
        """The last duplicate of the handle is closed. The last writer's close has the file published."""
        opened = self._handles.pop(handle)
        file = opened.file
        if not opened.writing:
            await self._files.release(file, writing=False)
            self._core.reap(file.ino)
            return
        self._leave(file)
        if self._core.options.close_mode is CloseMode.ASYNC and self._nursery is not None:
            self._nursery.start_soon(self._finish_and_report, file)
        else:
            await self._finish(file)

    def _leave(self, file: OpenFile) -> None:
        """A writer has closed; :meth:`_finish` must follow."""
        file.leaving += 1
        self._finishing += 1

    async def finish_new(self, inode: Inode) -> None:
        """Seal and publish a file that was made and never opened."""
        file = self._files.acquire(inode, writing=True)
        file.generation = 1
        self._leave(file)
        await self._finish(file)

    async def _finish_and_report(self, file: OpenFile) -> None:
        try:
            await self._finish(file)
        except (OSError, CkptfsError) as error:
            log.error("inode %s could not be sealed after its close: %s", file.ino, error)  # noqa: TRY400 - no trace

    async def _finish(self, file: OpenFile) -> None:
        """End one writer: seal and publish if it was the last."""
        with trio.CancelScope(shield=True):
            try:
                inode = self._state.inodes.get(file.ino)
                if file.writers == 1 and inode is not None and inode.nlink:
                    await self._seal_last(file)
            finally:
                self._finishing -= 1
                if not self._finishing:
                    self._finished.set()
                file.leaving -= 1
                left, file.left = file.left, trio.Event()
                left.set()
                await self._files.release(file, writing=True)
                self._core.reap(file.ino)

    async def _seal_last(self, file: OpenFile) -> None:
        """Seal for the last writer, and again when somebody changed the file meanwhile and was done before us."""
        durable = self._core.options.close_mode is CloseMode.SYNC
        try:
            while file.writers == 1 and file.generation > file.sealed_generation:
                file.check()
                await self._sealer.seal(file, durable=durable)
        except (OSError, CkptfsError):
            self._sealer.give_up(file)
            raise
        if file.error is not None:
            self._sealer.give_up(file)
        elif file.writers == 1:
            self._sealer.oblige(file)

    async def fsync(self, handle: int) -> None:
        """Make the file, and every change of the namespace before, durable."""
        await self._sealer.sync(self._handle(handle).file)
