"""Contents: the generations of files' bytes, and which of them each inode is committed to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptfs.namespace.rows import PLACE_INLINE, Content
from ckptfs.types import NO_CONTENT, ContentId, ContentState, ETag, Ino, Key

if TYPE_CHECKING:
    from collections.abc import Callable

    from ckptfs.namespace.bucket import Bucket
    from ckptfs.namespace.rows import Inode
    from ckptfs.namespace.state import State
    from ckptfs.namespace.tree import Tree

_S = ContentState

TRANSITIONS: dict[ContentState, frozenset[ContentState]] = {
    _S.OPEN: frozenset({_S.SEALED, _S.DURABLE, _S.TORN, _S.FAULTY}),
    _S.SEALED: frozenset({_S.OPEN, _S.DURABLE, _S.FAULTY, _S.PUBLISHING, _S.TORN}),
    _S.DURABLE: frozenset({_S.OPEN, _S.REPLICATED, _S.PUBLISHING, _S.FAULTY}),
    _S.REPLICATED: frozenset({_S.PUBLISHING, _S.FAULTY}),
    _S.PUBLISHING: frozenset({_S.PUBLISHED, _S.DURABLE, _S.FAULTY}),
    _S.PUBLISHED: frozenset({_S.RECLAIMED, _S.FAULTY, _S.OPEN}),
    _S.RECLAIMED: frozenset({_S.FAULTY, _S.PUBLISHED}),
    _S.TORN: frozenset({_S.OPEN, _S.SEALED, _S.FAULTY}),
    _S.FAULTY: frozenset(),
}
"""Which state may follow which. OPEN after SEALED or DURABLE: the writer that had it sealed at a close wrote on, and
nobody had begun to publish it. OPEN after PUBLISHED: the bytes of the cache became the base of a new writer."""

UNPUBLISHED = frozenset({_S.SEALED, _S.DURABLE, _S.REPLICATED, _S.PUBLISHING})
"""States whose bytes exist nowhere but in staging."""


class Contents:
    """Contents and their states.

    Args:
        state: the tables.
        tree: to find the names, hence keys, of a content's inode.
        bucket: told which keys a new content concerns.
    """

    def __init__(self, state: State, tree: Tree, bucket: Bucket) -> None:
        self._state = state
        self._tree = tree
        self._bucket = bucket
        self.on_publish: list[Callable[[Content], None]] = []
        """Called with each content that becomes clean: what is here of it is cache from now on."""
        self.on_drop: list[Callable[[Content], None]] = []
        """Called with each content that is forgotten: the cache counts it no longer."""

    def get(self, content: ContentId) -> Content | None:
        """The content, or ``None`` when it was dropped; not to be held over an await."""
        return self._state.contents.get(content)

    def begin(self, ino: Ino, place: int) -> Content:
        """Begin a content for a writer of ``ino``, state OPEN. The inode is not committed to it yet."""
        content = Content(self._state.allocate_content(), ino, place=place)
        self._state.contents.put(content.id, content)
        self._state.touch()
        return content

    def move(self, content: Content, state: ContentState) -> None:
        """The one transition function: every change of state passes here."""
        assert state is content.state or state in TRANSITIONS[content.state], f"{content.id}: {content.state} → {state}"
        content.state = state
        self._state.contents.mark(content.id)
        self._state.touch()
        if state is _S.PUBLISHED:
            for listener in self.on_publish:
                listener(content)

    def commit(self, inode: Inode, content: ContentId) -> ContentId:
        """Make ``content`` what the inode is committed to; gives the one that it replaces, which the caller drops."""
        replaced = inode.content
        inode.content = content
        self._state.inodes.mark(inode.ino)
        self._state.record("commit", ino=inode.ino, content=content, size=inode.size)
        return NO_CONTENT if replaced == content else replaced

    def oblige(self, inode: Inode) -> None:
        """Say that the inode's keys are to show its committed content (its last writer closed it)."""
        lsn = self._state.record("seal", ino=inode.ino, content=inode.content)
        for parent, name in self._tree.names_of(inode):
            key = self._tree.key_of(parent, name)
            if key is not None:
                self._bucket.oblige(key, lsn)

    def drop(self, content: ContentId) -> None:
        """Forget a content that no inode and no handle needs; the caller removes its staging file."""
        row = self._state.contents.get(content)
        self._state.contents.remove(content)
        self._state.touch()
        if row is not None:
            for listener in self.on_drop:
                listener(row)

    def from_bucket(self, ino: Ino, key: Key, etag: ETag, size: int) -> Content:
        """A content that an object holds and this node does not (yet)."""
        content = Content(
            self._state.allocate_content(), ino, size=size, state=ContentState.RECLAIMED, key=key, etag=etag
        )
        self._state.contents.put(content.id, content)
        self._state.touch()
        return content

    def data(self, content: Content) -> bytes:
        """The bytes of an inline content."""
        assert content.place == PLACE_INLINE, f"content {content.id} is not in the journal"
        assert content.data is not None, f"content {content.id} has no bytes in the journal"
        return content.data

    def unpublished_bytes(self) -> int:
        """Bytes that exist nowhere but in staging, as saved."""
        marks = ", ".join("?" * len(UNPUBLISHED))
        (total,) = self._state.database.query(
            f"SELECT sum(size) FROM content WHERE state IN ({marks})",  # noqa: S608 - marks only
            tuple(state.value for state in UNPUBLISHED),
        )[0]
        return total or 0

    def clean(self, after: ContentId, limit: int) -> list[tuple[ContentId, int]]:
        """Up to ``limit`` contents behind ``after``, and their sizes, whose bytes are here and in the bucket."""
        rows = self._state.database.query(
            "SELECT id, size FROM content WHERE state = ? AND id > ? AND place <> 0 ORDER BY id LIMIT ?",
            (_S.PUBLISHED.value, after, limit),
        )
        return [(ContentId(content), size) for content, size in rows]

    def counts(self) -> dict[str, tuple[int, int]]:
        """Contents and bytes by state, as saved."""
        rows = self._state.database.query("SELECT state, count(*), sum(size) FROM content GROUP BY state")
        return {state: (count, size or 0) for state, count, size in rows}
