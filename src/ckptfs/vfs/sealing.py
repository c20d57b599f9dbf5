"""Syncing and sealing: how the live bytes of an open file become what the inode is committed to."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

from ckptfs.errors import CkptfsError
from ckptfs.namespace.rows import PLACE_FILE
from ckptfs.staging import BLOCK_BYTES, digest_blocks, digest_bytes
from ckptfs.types import NO_CONTENT, ContentState

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from ckptfs.disk.base import Fd
    from ckptfs.env import Env
    from ckptfs.namespace import Namespace
    from ckptfs.staging import Staging
    from ckptfs.vfs.openfile import OpenFile, OpenFiles


class Sealer:
    """Syncs and seals open files.

    Args:
        env: threads.
        namespace: inodes, contents, journal.
        staging: files of contents.
        files: the open files.
    """

    def __init__(self, env: Env, namespace: Namespace, staging: Staging, files: OpenFiles) -> None:
        self._env = env
        self._namespace = namespace
        self._staging = staging
        self._disk = staging.disk
        self._files = files
        self._digest_limiter = trio.CapacityLimiter(2)

    async def sync(self, file: OpenFile) -> None:
        """Make the live bytes and everything that led to them durable, and commit the inode to them.

        Raises:
            OSError, CkptfsError: they could not be, now or before; the file stays in error.
        """
        async with file.lock:
            file.check()
            if file.generation > file.durable_generation:
                generation = file.generation
                await self._sync_bytes(file)
                self._commit(file)
                self._now_durable(file)
                await self._namespace.state.sync()
                file.durable_generation = generation
                return
        await self._namespace.state.sync()

    def _now_durable(self, file: OpenFile) -> None:
        content = self._namespace.contents.get(file.content)
        if content is not None and content.state is ContentState.SEALED:
            self._namespace.contents.move(content, ContentState.DURABLE)

    async def _sync_bytes(self, file: OpenFile) -> None:
        """Bring the live bytes to stable storage (inline ones: into the row that the next commit writes)."""
        if file.buffer is not None:
            content = self._files.content_of(file)
            content.data, content.size = bytes(file.buffer), len(file.buffer)
            self._namespace.state.contents.mark(content.id)
            return
        if file.content == NO_CONTENT or self._files.content_of(file).place != PLACE_FILE:
            return
        async with self._locked_descriptor(file) as fd:
            await self._disk.fsync(fd)
            file.allocated = min(file.size, await self._disk.allocated(fd))
        if not file.entry_synced:
            await self._staging.sync_entry(file.content)
            file.entry_synced = True

    @asynccontextmanager
    async def _locked_descriptor(self, file: OpenFile) -> AsyncIterator[Fd]:
        """The descriptor, for a caller that holds the lock. An error of the disk here is the content's end."""
        await self._files.open_descriptor(file)
        assert file.fd is not None
        try:
            yield file.fd
        except OSError as error:
            self.fail(file, error)
            raise

    def fail(self, file: OpenFile, error: Exception) -> None:
        """The disk failed the live bytes: never trust them again."""
        file.error = file.error or error
        content = self._namespace.contents.get(file.content)
        if content is not None and content.state is not ContentState.FAULTY:
            content.error = str(error)
            self._namespace.contents.move(content, ContentState.FAULTY)

    def _commit(self, file: OpenFile) -> None:
        """Commit the inode to the live content."""
        inode = self._namespace.state.inodes.get(file.ino)
        if inode is None:
            return
        content = self._namespace.contents.get(file.content)
        if content is not None and content.state is ContentState.OPEN:
            content.size = file.size
            self._namespace.state.contents.mark(content.id)
        inode.size, inode.allocated = file.size, file.allocated
        self._files.drop_if_unused(self._namespace.contents.commit(inode, file.content))

    async def seal(self, file: OpenFile, *, durable: bool) -> None:
        """Fix the digests of the live bytes and commit to them.

        With ``durable`` return when all of it is on stable storage. A write that comes meanwhile leaves the content
        OPEN (its own close seals it); what was written before is durable all the same.
        """
        async with file.lock:
            file.check()
            if file.sealed_generation < file.generation:
                await self._seal_locked(file, durable=durable)
            if not durable:
                return
            if file.durable_generation < file.sealed_generation:
                await self._sync_bytes(file)
                self._now_durable(file)
        await self._namespace.state.sync()
        file.durable_generation = max(file.durable_generation, file.sealed_generation)

    async def _seal_locked(self, file: OpenFile, *, durable: bool) -> None:
        generation = file.generation
        if file.content == NO_CONTENT:
            self._files.begin_inline(file, bytearray())
        digests = await self._digest(file, durable=durable)
        if file.generation != generation or file.writing:
            self._commit(file)
            return
        content = self._files.content_of(file)
        content.size, content.digests, content.block_bytes = file.size, digests, BLOCK_BYTES
        if file.buffer is not None:
            content.data = bytes(file.buffer)
            file.buffer = None
        if content.state is not ContentState.FAULTY:
            self._namespace.contents.move(content, ContentState.DURABLE if durable else ContentState.SEALED)
        self._commit(file)
        file.sealed_generation = generation

    async def _digest(self, file: OpenFile, *, durable: bool) -> bytes:
        """Digests of the live bytes; with ``durable`` their sync goes on at the same time."""
        if file.buffer is not None:
            return digest_bytes(file.buffer)
        digests = b""

        async def compute(fd: Fd) -> None:
            nonlocal digests
            digests = await self._env.run_blocking(digest_blocks, fd, file.size, limiter=self._digest_limiter)
            file.allocated = min(file.size, await self._disk.allocated(fd))

        async with self._locked_descriptor(file) as fd:
            if not durable:
                await compute(fd)
                return digests
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(compute, fd)
                nursery.start_soon(self._sync_bytes, file)
        except* (OSError, CkptfsError) as group:
            error = group.exceptions[0]
            assert isinstance(error, Exception)
            self.fail(file, error)
            raise error from None
        return digests

    def give_up(self, file: OpenFile) -> None:
        """The last writer of a file in error closed it.

        A new file shows what it has, marked FAULTY; over an older content that one stays.
        """
        inode = self._namespace.state.inodes.get(file.ino)
        if inode is None or file.error is None or inode.content == file.content:
            return
        if inode.content == NO_CONTENT and file.content != NO_CONTENT:
            content = self._files.content_of(file)
            self.fail(file, file.error)
            content.size = file.size
            if file.buffer is not None:
                content.data, file.buffer = bytes(file.buffer), None
            self._commit(file)

    def oblige(self, file: OpenFile) -> None:
        """The last writer closed the file: its names are to be published with what was sealed."""
        inode = self._namespace.state.inodes.get(file.ino)
        if inode is not None and file.sealed_generation > file.obliged_generation:
            file.obliged_generation = file.sealed_generation
            if inode.nlink:
                self._namespace.contents.oblige(inode)
