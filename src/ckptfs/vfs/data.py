"""Bytes of open files: reading, writing and truncating their live contents."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import trio

from ckptfs.errors import IntegrityError, PosixError
from ckptfs.namespace.rows import PLACE_FILE, PLACE_INLINE, PLACE_NONE
from ckptfs.staging import SpaceGuard
from ckptfs.types import NO_CONTENT, ContentId, ContentState

if TYPE_CHECKING:
    from ckptfs.disk.base import Disk
    from ckptfs.env import Env
    from ckptfs.namespace import Namespace
    from ckptfs.namespace.rows import Content
    from ckptfs.staging import Staging
    from ckptfs.vfs.openfile import OpenFile, OpenFiles

INLINE_BYTES_MAX = 64 * 1024
"""A content up to this size is kept in memory while it is written and in the journal afterwards."""

INLINE_FILE_COUNT = 512
INLINE_BYTES_CROWDED = 4096
"""While more files than this are open, only contents up to this size are kept in memory."""

FULL_WAIT_S = 30.0
FULL_LOOK_S = 0.1
"""How long a writer waits for room on a full disk, and how often it looks."""

FILE_BYTES_MAX = 1 << 62
"""Largest offset that a file may reach."""


class Reader(Protocol):
    """Brings bytes of contents that only the bucket has."""

    async def read(self, content: ContentId, offset: int, length: int) -> bytes:
        """Bytes of the content, exactly ``length`` (the caller keeps within its size)."""

    async def materialize(self, content: ContentId) -> None:
        """Bring the whole content into staging; its place is the staging file then."""


Room = Callable[[int], bool]
"""Asked to free so many bytes of the disk; whether there is hope that it will."""


class FileData:
    """Operations on the bytes of open files.

    Args:
        env: waiting.
        namespace: contents.
        staging: files of contents.
        files: the open files.
        reader: brings what only the bucket has.
        room: asked for room when the disk is full.
    """

    def __init__(
        self, env: Env, namespace: Namespace, staging: Staging, files: OpenFiles, reader: Reader, room: Room
    ) -> None:
        self._env = env
        self._room = room
        self._space = SpaceGuard(staging.disk, staging.root)
        self._namespace = namespace
        self._staging = staging
        self._disk: Disk = staging.disk
        self._files = files
        self._reader = reader

    async def read(self, file: OpenFile, offset: int, length: int) -> bytes:
        """Bytes of the live content; fewer than ``length`` only at its end."""
        length = min(length, file.size - offset)
        if length <= 0:
            return b""
        if file.buffer is not None:
            return bytes(memoryview(file.buffer)[offset : offset + length])
        content = self._files.content_of(file)
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
        async with self._files.descriptor(file) as fd:
            data = await self._disk.pread(fd, offset, length)
        if len(data) != length and file.size >= offset + length:
            raise IntegrityError(f"the staging file of content {file.content} is shorter than its content")
        return data

    # --- writing

    async def write(self, file: OpenFile, offset: int, data: bytes) -> None:
        """Write all of ``data`` into the live content, beginning a new one when the live one must stay as it is."""
        file.check()
        try:
            while not (self._write_inline(file, offset, data) or await self._write_file(file, offset, data)):
                async with file.lock:
                    await self._make_writable(file)
                    if offset + len(data) > self._inline_limit():
                        await self._spill(file)
        except OSError as error:
            file.error = file.error or error
            raise
        file.size = max(file.size, offset + len(data))
        file.allocated = min(file.size, file.allocated + len(data))
        file.generation += 1

    async def _write_file(self, file: OpenFile, offset: int, data: bytes) -> bool:
        """Write into the staging file; ``False`` when the live content is not one that may be written there."""
        if not self._is_writable_file(file):
            return False
        await self._admit(len(data))
        if not self._is_writable_file(file):
            return False
        file.writing += 1
        try:
            async with self._files.descriptor(file) as fd:
                await self._disk.pwrite(fd, offset, data)
        finally:
            file.writing -= 1
        return True

    async def _admit(self, byte_count: int) -> None:
        """Return when there is room for more bytes; that is the back-pressure of a full disk.

        Raises:
            OSError: ENOSPC, there was none for :data:`FULL_WAIT_S`, or nothing can free any.
        """
        if self._space.try_admit(byte_count):
            return
        until_s = self._env.monotonic_s() + FULL_WAIT_S
        while not await self._space.admit(byte_count):
            if not self._room(byte_count) or self._env.monotonic_s() > until_s:
                raise OSError(errno.ENOSPC, "no room for more bytes on the disk of the cache directory")
            await self._env.sleep(FULL_LOOK_S)

    def _write_inline(self, file: OpenFile, offset: int, data: bytes) -> bool:
        """Write into the buffer; ``False`` when there is none or the content gets too large for it."""
        buffer = file.buffer
        end = offset + len(data)
        if buffer is None or end > self._inline_limit():
            return False
        if offset > len(buffer):
            buffer.extend(bytes(offset - len(buffer)))
        buffer[offset:end] = data
        return True

    def _inline_limit(self) -> int:
        return INLINE_BYTES_MAX if self._files.count <= INLINE_FILE_COUNT else INLINE_BYTES_CROWDED

    def _is_writable_file(self, file: OpenFile) -> bool:
        content = self._namespace.contents.get(file.content)
        return (
            content is not None
            and content.state is ContentState.OPEN
            and content.place == PLACE_FILE
            and not file.reopening
        )

    async def _make_writable(self, file: OpenFile) -> None:
        """Make the live content one that may be modified. The caller holds the lock."""
        if file.buffer is not None or self._is_writable_file(file):
            return
        if file.content == NO_CONTENT:
            self._files.begin_inline(file, bytearray())
            return
        content = self._files.content_of(file)
        if self._may_continue(file, content):
            await self._reopen(file, content)
            return
        if content.place == PLACE_NONE:
            await self._reader.materialize(content.id)
            content = self._files.content_of(file)
        if content.place == PLACE_INLINE:
            self._files.begin_inline(file, bytearray(self._namespace.contents.data(content)))
        elif file.size <= INLINE_BYTES_MAX:
            self._files.begin_inline(file, bytearray(await self._whole(file)))
            await self._files.retire(file)
        else:
            await self._copy(file)

    async def _reopen(self, file: OpenFile, content: Content) -> None:
        """Go on in a content that was sealed and that nobody was told of.

        Bytes in a staging file change at once, so the journal must know before that their digests no longer hold: a
        crash in between would find a sealed content with other bytes.
        """
        if content.place == PLACE_INLINE:
            file.buffer = bytearray(self._namespace.contents.data(content))
            self._namespace.contents.move(content, ContentState.OPEN)
            return
        sealed = content.state
        self._namespace.contents.move(content, ContentState.OPEN)
        file.reopening = True
        try:
            await self._namespace.state.sync(self._namespace.state.record("reopen", content=content.id))
        except BaseException:
            self._namespace.contents.move(self._files.content_of(file), sealed)
            raise
        finally:
            file.reopening = False

    def _may_continue(self, file: OpenFile, content: Content) -> bool:
        """Whether the content was sealed by this very open file and nobody was told of it.

        Then the writer just goes on.
        """
        return content.state is ContentState.OPEN or (
            content.state in {ContentState.SEALED, ContentState.DURABLE, ContentState.TORN}
            and file.sealed_generation > file.obliged_generation
        )

    async def _whole(self, file: OpenFile) -> bytes:
        await self._files.open_descriptor(file)
        assert file.fd is not None
        return await self._disk.pread(file.fd, 0, file.size)

    async def _copy(self, file: OpenFile) -> None:
        """Go on in a copy of the live content's staging file."""
        await self._files.open_descriptor(file)
        source = file.fd
        assert source is not None
        await self._admit(file.size)
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
        await self._files.retire(file)
        file.fd = target
        self._files.switch(file, content.id)

    async def _spill(self, file: OpenFile) -> None:
        """Move the buffer to a staging file. The caller holds the lock."""
        buffer = file.buffer
        if buffer is None:
            return
        content = self._files.content_of(file)
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
        content = self._files.content_of(file)
        content.place, content.data = PLACE_FILE, None
        self._namespace.state.contents.mark(content.id)
        self._namespace.state.touch()
        file.buffer, file.fd = None, fd

    async def truncate(self, file: OpenFile, size: int) -> None:
        """Cut or extend (with zeros) the live content."""
        if size == 0:
            await self.begin_empty(file)
            return
        file.check()
        async with file.lock:
            await self._make_writable(file)
            if file.buffer is not None and size > INLINE_BYTES_MAX:
                await self._spill(file)
            if file.buffer is not None:
                del file.buffer[size:]
                file.buffer.extend(bytes(size - len(file.buffer)))
            else:
                await self._files.open_descriptor(file)
                assert file.fd is not None
                await self._disk.truncate(file.fd, size)
            file.size = size
            file.allocated = min(file.allocated, size)
            file.generation += 1

    async def begin_empty(self, file: OpenFile) -> None:
        """Begin a new, empty content.

        A committed one stays what a crash leaves until the new one is synced or closed.
        """
        async with file.lock:
            await self._files.retire(file)
            file.error = None
            self._files.begin_inline(file, bytearray())
            file.size = file.allocated = 0
            file.generation += 1


def check_size(size: int) -> None:
    """Refuse sizes that no file can have.

    Raises:
        PosixError: EFBIG.
    """
    if size > FILE_BYTES_MAX:
        raise PosixError(errno.EFBIG)
