"""Open files: the live content of an inode while anyone has it open.

How its bytes are read, written, synced and sealed is here.

An inode has a *committed* content (``Inode.content``: what a crash leaves, what is published) and, here, a *live*
one, which is what every handle reads and writes. They are the same until a writer begins a new content; a sync or the
last close commits it. A committed content that anything still needs is never modified: the first write copies it.

What may interleave: every await lets other calls on the same file run. Changes of the live content, syncs and seals
hold ``OpenFile.lock``; plain reads and writes do not, they only note ``generation`` so that a seal knows when it was
overtaken.
"""

from __future__ import annotations

import errno
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import trio

from ckptfs.errors import CkptfsError, IntegrityError, PosixError
from ckptfs.namespace.rows import PLACE_FILE, PLACE_INLINE, PLACE_NONE
from ckptfs.staging import BLOCK_BYTES, digest_blocks, digest_bytes
from ckptfs.types import NO_CONTENT, ContentId, ContentState, Ino

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from ckptfs.disk.base import Disk, Fd
    from ckptfs.env import Env
    from ckptfs.namespace import Namespace
    from ckptfs.namespace.rows import Content, Inode
    from ckptfs.staging import Staging

INLINE_BYTES_MAX = 64 * 1024
"""A content up to this size is kept in memory while it is written and in the journal afterwards."""


class Reader(Protocol):
    """Brings bytes of contents that only the bucket has."""

    async def read(self, content: ContentId, offset: int, length: int) -> bytes:
        """Bytes of the content, exactly ``length`` (the caller keeps within its size)."""

    async def materialize(self, content: ContentId) -> None:
        """Bring the whole content into staging; its place is the staging file then."""


@dataclass(slots=True, eq=False)
class OpenFile:
    """The live state of an inode that has handles.

    Attributes:
        ino: the inode.
        content: live content; ``NO_CONTENT`` is the empty one.
        size: live size in bytes.
        handles: how many opens there are; ``writers`` of them for writing.
        buffer: the bytes of a live content that is OPEN and inline.
        fd: the staging file of the live content, once it was needed.
        generation: grows with every change of the bytes.
        durable_generation: up to which they were synced and committed; ``sealed_generation``: up to which they were
        sealed. error: what the bytes met first; sticky until the file is truncated to zero or removed.
        users: calls at work on ``fd``; it is closed only without any.
    """

    ino: Ino
    content: ContentId
    size: int
    handles: int = 0
    writers: int = 0
    buffer: bytearray | None = None
    fd: Fd | None = None
    generation: int = 0
    durable_generation: int = 0
    sealed_generation: int = 0
    obliged_generation: int = 0
    error: Exception | None = None
    users: int = 0
    retired: list[Fd] = field(default_factory=list)
    entry_synced: bool = False
    lock: trio.Lock = field(default_factory=trio.Lock)


class Files:
    """Open files by inode, and every operation on their bytes.

    Args:
        env: threads.
        namespace: inodes and contents.
        staging: files of contents.
        reader: brings what only the bucket has.
    """

    def __init__(self, env: Env, namespace: Namespace, staging: Staging, reader: Reader) -> None:
        self._env = env
        self._namespace = namespace
        self._staging = staging
        self._disk: Disk = staging.disk
        self._reader = reader
        self._open: dict[Ino, OpenFile] = {}
        self._live: dict[ContentId, int] = {}
        self._removals: set[ContentId] = set()
        self._digest_limiter = trio.CapacityLimiter(2)

    def get(self, ino: Ino) -> OpenFile | None:
        """The open file of an inode, or ``None`` when nobody has it open."""
        return self._open.get(ino)

    def in_use(self, content: ContentId) -> bool:
        """Whether a handle reads or writes this content."""
        return content in self._live

    @property
    def count(self) -> int:
        """Files that someone has open."""
        return len(self._open)

    # --- opening and closing

    def acquire(self, inode: Inode, *, writing: bool) -> OpenFile:
        """Count one more handle."""
        file = self._open.get(inode.ino)
        if file is None:
            file = OpenFile(inode.ino, inode.content, inode.size)
            content = self._namespace.contents.get(inode.content)
            if content is not None and content.state in {ContentState.OPEN, ContentState.SEALED, ContentState.TORN}:
                file.durable_generation = -1
            self._open[inode.ino] = file
            self._use(file.content)
        file.handles += 1
        file.writers += writing
        return file

    async def release(self, file: OpenFile, *, writing: bool) -> None:
        """Count one handle less; the last one closes the descriptor and lets the file go."""
        file.handles -= 1
        file.writers -= writing
        if file.handles:
            return
        async with file.lock:
            if file.handles:
                return
            await self._retire(file)
            if not file.handles:
                self._forget(file)

    def _forget(self, file: OpenFile) -> None:
        self._open.pop(file.ino, None)
        self._unuse(file.content)
        self.drop_if_unused(file.content)

    def _use(self, content: ContentId) -> None:
        if content != NO_CONTENT:
            self._live[content] = self._live.get(content, 0) + 1

    def _unuse(self, content: ContentId) -> None:
        if content == NO_CONTENT:
            return
        self._live[content] -= 1
        if not self._live[content]:
            del self._live[content]

    def _switch(self, file: OpenFile, content: ContentId) -> None:
        """Make ``content`` the live one. The caller holds the lock and retires the descriptor."""
        old, file.content = file.content, content
        file.entry_synced = False
        self._use(content)
        self._unuse(old)
        self.drop_if_unused(old)

    def drop_if_unused(self, content_id: ContentId) -> None:
        """Drop a content that no handle has open and no inode is committed to."""
        content = self._namespace.contents.get(content_id)
        if content is None or content_id in self._live:
            return
        owner = self._namespace.state.inodes.get(content.ino)
        if owner is not None and owner.content == content_id:
            return
        if content.place != PLACE_INLINE:
            self._removals.add(content_id)
        self._namespace.contents.drop(content_id)

    async def remove_dropped(self) -> None:
        """Remove the staging files of dropped contents.

        The rows that named them are gone from memory, and on disk before the files.
        """
        if not self._removals:
            await trio.lowlevel.checkpoint()
            return
        removals, self._removals = self._removals, set()
        await self._namespace.state.flush()
        for content in removals:
            await self._staging.remove(content)

    @asynccontextmanager
    async def _descriptor(self, file: OpenFile) -> AsyncIterator[Fd]:
        """The live content's staging file for the length of one call."""
        if file.fd is None:
            async with file.lock:
                await self._open_descriptor(file)
        fd = file.fd
        assert fd is not None
        file.users += 1
        try:
            yield fd
        finally:
            file.users -= 1
            if not file.users and file.retired:
                with trio.CancelScope(shield=True):
                    while file.retired:
                        await self._disk.close(file.retired.pop())

    async def _open_descriptor(self, file: OpenFile) -> None:
        if file.fd is None:
            try:
                file.fd = await self._staging.open(file.content)
            except FileNotFoundError as error:
                raise IntegrityError(f"the staging file of content {file.content} is missing") from error

    async def _retire(self, file: OpenFile) -> None:
        """Close the descriptor, or leave that to the last call that uses it."""
        fd, file.fd = file.fd, None
        if fd is None:
            return
        if file.users:
            file.retired.append(fd)
            return
        with trio.CancelScope(shield=True):
            await self._disk.close(fd)

    # --- reading

    async def read(self, file: OpenFile, offset: int, length: int) -> bytes:
        """Bytes of the live content; fewer than ``length`` only at its end."""
        length = min(length, file.size - offset)
        if length <= 0:
            return b""
        if file.buffer is not None:
            return bytes(memoryview(file.buffer)[offset : offset + length])
        content = self._content(file)
        if content.place == PLACE_INLINE:
            return self._namespace.contents.data(content)[offset : offset + length]
        if content.place == PLACE_NONE:
            return await self._reader.read(content.id, offset, length)
        if file.fd is not None:
            ready = self._disk.try_pread(file.fd, offset, length)
            if ready is not None:
                return ready
        return await self._read_file(file, offset, length)

    async def _read_file(self, file: OpenFile, offset: int, length: int) -> bytes:
        async with self._descriptor(file) as fd:
            data = await self._disk.pread(fd, offset, length)
        if len(data) != length and file.size >= offset + length:
            raise IntegrityError(f"the staging file of content {file.content} is shorter than its content")
        return data

    def _content(self, file: OpenFile) -> Content:
        content = self._namespace.contents.get(file.content)
        if content is None:
            raise IntegrityError(f"content {file.content} of inode {file.ino} is unknown")
        return content

    # --- writing

    async def write(self, file: OpenFile, offset: int, data: bytes) -> None:
        """Write all of ``data`` into the live content, beginning a new one when the live one must stay as it is."""
        self._raise_sticky(file)
        try:
            while not (self._write_inline(file, offset, data) or await self._write_file(file, offset, data)):
                async with file.lock:
                    await self._make_writable(file)
                    if offset + len(data) > INLINE_BYTES_MAX:
                        await self._spill(file)
        except OSError as error:
            file.error = file.error or error
            raise
        file.size = max(file.size, offset + len(data))
        file.generation += 1

    async def _write_file(self, file: OpenFile, offset: int, data: bytes) -> bool:
        """Write into the staging file; ``False`` when the live content is not one that may be written there."""
        if not self._is_writable_file(file):
            return False
        async with self._descriptor(file) as fd:
            await self._disk.pwrite(fd, offset, data)
        return True

    def _write_inline(self, file: OpenFile, offset: int, data: bytes) -> bool:
        """Write into the buffer; ``False`` when there is none or the content gets too large for it."""
        buffer = file.buffer
        end = offset + len(data)
        if buffer is None or end > INLINE_BYTES_MAX:
            return False
        if offset > len(buffer):
            buffer.extend(bytes(offset - len(buffer)))
        buffer[offset:end] = data
        return True

    def _is_writable_file(self, file: OpenFile) -> bool:
        content = self._namespace.contents.get(file.content)
        return content is not None and content.state is ContentState.OPEN and content.place == PLACE_FILE

    async def _make_writable(self, file: OpenFile) -> None:
        """Make the live content one that may be modified. The caller holds the lock."""
        if file.buffer is not None or self._is_writable_file(file):
            return
        if file.content == NO_CONTENT:
            self._begin_inline(file, bytearray())
            return
        content = self._content(file)
        if self._may_continue(file, content):
            if content.place == PLACE_INLINE:
                file.buffer = bytearray(self._namespace.contents.data(content))
            self._namespace.contents.move(content, ContentState.OPEN)
            return
        if content.place == PLACE_NONE:
            await self._reader.materialize(content.id)
            content = self._content(file)
        if content.place == PLACE_INLINE:
            self._begin_inline(file, bytearray(self._namespace.contents.data(content)))
        elif file.size <= INLINE_BYTES_MAX:
            self._begin_inline(file, bytearray(await self._whole(file)))
            await self._retire(file)
        else:
            await self._copy(file)

    def _may_continue(self, file: OpenFile, content: Content) -> bool:
        """Whether the content was sealed by this very open file and nobody was told of it.

        Then the writer just goes on.
        """
        return content.state is ContentState.OPEN or (
            content.state in {ContentState.SEALED, ContentState.DURABLE, ContentState.TORN}
            and file.sealed_generation > file.obliged_generation
        )

    async def _whole(self, file: OpenFile) -> bytes:
        await self._open_descriptor(file)
        assert file.fd is not None
        return await self._disk.pread(file.fd, 0, file.size)

    def _begin_inline(self, file: OpenFile, buffer: bytearray) -> None:
        content = self._namespace.contents.begin(file.ino, PLACE_INLINE)
        file.buffer = buffer
        self._switch(file, content.id)

    async def _copy(self, file: OpenFile) -> None:
        """Go on in a copy of the live content's staging file."""
        await self._open_descriptor(file)
        source = file.fd
        assert source is not None
        content = self._namespace.contents.begin(file.ino, PLACE_FILE)
        target = await self._staging.create(content.id)
        try:
            await self._disk.copy_range(source, target, file.size)
        except BaseException:
            with trio.CancelScope(shield=True):
                await self._disk.close(target)
                await self._staging.remove(content.id)
            self._namespace.contents.drop(content.id)
            raise
        await self._retire(file)
        file.fd = target
        self._switch(file, content.id)

    async def _spill(self, file: OpenFile) -> None:
        """Move the buffer to a staging file. The caller holds the lock."""
        buffer = file.buffer
        if buffer is None:
            return
        content = self._content(file)
        fd = await self._staging.create(content.id)
        written = file.generation
        try:
            while True:
                snapshot = bytes(buffer)
                await self._disk.pwrite(fd, 0, snapshot)
                if file.generation == written and len(buffer) == len(snapshot):
                    break
                written = file.generation
        except BaseException:
            with trio.CancelScope(shield=True):
                await self._disk.close(fd)
                await self._staging.remove(content.id)
            raise
        content = self._content(file)
        content.place, content.data = PLACE_FILE, None
        self._namespace.state.contents.mark(content.id)
        self._namespace.state.touch()
        file.buffer, file.fd = None, fd

    async def truncate(self, file: OpenFile, size: int) -> None:
        """Cut or extend (with zeros) the live content."""
        if size == 0:
            await self.begin_empty(file)
            return
        self._raise_sticky(file)
        async with file.lock:
            await self._make_writable(file)
            if file.buffer is not None and size > INLINE_BYTES_MAX:
                await self._spill(file)
            if file.buffer is not None:
                del file.buffer[size:]
                file.buffer.extend(bytes(size - len(file.buffer)))
            else:
                await self._open_descriptor(file)
                assert file.fd is not None
                await self._disk.truncate(file.fd, size)
            file.size = size
            file.generation += 1

    async def begin_empty(self, file: OpenFile) -> None:
        """Begin a new, empty content.

        A committed one stays what a crash leaves until the new one is synced or closed.
        """
        async with file.lock:
            await self._retire(file)
            file.error = None
            self._begin_inline(file, bytearray())
            file.size = 0
            file.generation += 1

    # --- syncing and sealing

    def _raise_sticky(self, file: OpenFile) -> None:
        if file.error is not None:
            raise file.error

    async def sync(self, file: OpenFile) -> None:
        """Make the live bytes and everything that led to them durable, and commit the inode to them.

        Raises:
            OSError, CkptfsError: they could not be, now or before; the file stays in error.
        """
        async with file.lock:
            self._raise_sticky(file)
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
            content = self._content(file)
            content.data, content.size = bytes(file.buffer), len(file.buffer)
            self._namespace.state.contents.mark(content.id)
            return
        if file.content == NO_CONTENT or self._content(file).place != PLACE_FILE:
            return
        async with self._locked_descriptor(file) as fd:
            await self._disk.fsync(fd)
        if not file.entry_synced:
            await self._staging.sync_entry(file.content)
            file.entry_synced = True

    @asynccontextmanager
    async def _locked_descriptor(self, file: OpenFile) -> AsyncIterator[Fd]:
        """The descriptor, for a caller that holds the lock. An error of the disk here is the content's end."""
        await self._open_descriptor(file)
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
        inode.size = file.size
        self.drop_if_unused(self._namespace.contents.commit(inode, file.content))

    async def seal(self, file: OpenFile, *, durable: bool) -> None:
        """Fix the digests of the live bytes and commit to them.

        With ``durable`` return when all of it is on stable storage. A write that comes meanwhile leaves the content
        OPEN (its own close seals it); what was written before is durable all the same.
        """
        async with file.lock:
            self._raise_sticky(file)
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
            self._begin_inline(file, bytearray())
        digests = await self._digest(file, durable=durable)
        if file.generation != generation:
            self._commit(file)
            return
        content = self._content(file)
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
            content = self._content(file)
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


def check_size(size: int) -> None:
    """Refuse sizes that no file can have.

    Raises:
        PosixError: EFBIG.
    """
    if size > 1 << 62:
        raise PosixError(errno.EFBIG)
