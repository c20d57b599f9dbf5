"""Open files: the live content of an inode while anyone has it open.

An inode has a *committed* content (``Inode.content``: what a crash leaves, what is published) and, here, a *live*
one, which is what every handle reads and writes. They are the same until a writer begins a new content; a sync or the
last close commits it (:mod:`ckptfs.vfs.sealing`). A committed content that anything still needs is never modified: the
first write copies it (:mod:`ckptfs.vfs.data`).

What may interleave: every await lets other calls on the same file run. Changes of the live content, syncs and seals
hold ``OpenFile.lock``; plain reads and writes do not, they only note ``generation`` so that a seal knows when it was
overtaken.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import trio

from ckptfs.errors import IntegrityError
from ckptfs.namespace.rows import PLACE_INLINE
from ckptfs.types import NO_CONTENT, ContentId, ContentState, Ino

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from ckptfs.disk.base import Disk, Fd
    from ckptfs.namespace import Namespace
    from ckptfs.namespace.rows import Content, Inode
    from ckptfs.staging import Staging


@dataclass(slots=True, eq=False)
class OpenFile:
    """The live state of an inode that has handles.

    Attributes:
        ino: the inode.
        content: live content; ``NO_CONTENT`` is the empty one.
        size: live size in bytes.
        allocated: bytes that are no holes; counted from the writes, set right by each sync and seal.
        handles: how many opens there are; ``writers`` of them for writing.
        leaving: writers that have closed and whose bytes are being sealed; ``left`` is set when one of them is done.
        writing: writes that are on their way into the staging file: a seal that meets one is overtaken.
        reopening: a content that was sealed is being opened again; its bytes must not change yet.
        buffer: the bytes of a live content that is OPEN and inline.
        fd: the staging file of the live content, once it was needed.
        generation: grows with every change of the bytes.
        durable_generation: up to which they were synced and committed.
        sealed_generation: up to which they were sealed; ``obliged_generation``: up to which they are to be published.
        error: what the bytes met first; sticky until the file is truncated to zero or removed.
        users: calls at work on ``fd``; it is closed only without any.
    """

    ino: Ino
    content: ContentId
    size: int
    allocated: int = 0
    handles: int = 0
    writers: int = 0
    leaving: int = 0
    left: trio.Event = field(default_factory=trio.Event)
    reopening: bool = False
    writing: int = 0
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

    def check(self) -> None:
        """Raise what the bytes met first, if anything."""
        if self.error is not None:
            raise self.error


class OpenFiles:
    """Open files by inode, which contents they use, and their descriptors.

    Args:
        namespace: inodes and contents.
        staging: files of contents.
    """

    def __init__(self, namespace: Namespace, staging: Staging) -> None:
        self._namespace = namespace
        self._staging = staging
        self._disk: Disk = staging.disk
        self._open: dict[Ino, OpenFile] = {}
        self._live: dict[ContentId, int] = {}
        self.on_unused: Callable[[ContentId], None] = lambda _content: None
        """Told of a content that the last handle let go: it was used just now."""
        self._removals: set[ContentId] = set()

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
            file = OpenFile(inode.ino, inode.content, inode.size, inode.allocated)
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
            # Both awaits let others open and close the file: the last of them forgets it, and only once.
            if self._is_unheld(file):
                await self.retire(file)
            if self._is_unheld(file):
                self._forget(file)

    def _is_unheld(self, file: OpenFile) -> bool:
        return not file.handles and self._open.get(file.ino) is file

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
            self.on_unused(content)

    def switch(self, file: OpenFile, content: ContentId) -> None:
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
    async def descriptor(self, file: OpenFile) -> AsyncIterator[Fd]:
        """The live content's staging file for the length of one call."""
        if file.fd is None:
            async with file.lock:
                await self.open_descriptor(file)
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

    async def open_descriptor(self, file: OpenFile) -> None:
        if file.fd is None:
            try:
                file.fd = await self._staging.open(file.content)
            except FileNotFoundError as error:
                raise IntegrityError(f"the staging file of content {file.content} is missing") from error

    async def retire(self, file: OpenFile) -> None:
        """Close the descriptor, or leave that to the last call that uses it."""
        fd, file.fd = file.fd, None
        if fd is None:
            return
        if file.users:
            file.retired.append(fd)
            return
        with trio.CancelScope(shield=True):
            await self._disk.close(fd)

    def content_of(self, file: OpenFile) -> Content:
        """The live content's row; not to be held over an await."""
        content = self._namespace.contents.get(file.content)
        if content is None:
            raise IntegrityError(f"content {file.content} of inode {file.ino} is unknown")
        return content

    def begin_inline(self, file: OpenFile, buffer: bytearray) -> None:
        """Go on in a new inline content that begins with ``buffer``. The caller holds the lock."""
        content = self._namespace.contents.begin(file.ino, PLACE_INLINE)
        file.buffer = buffer
        self.switch(file, content.id)
