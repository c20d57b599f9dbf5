"""The scene of a key, read from the namespace: plain reads, so that nothing changes between looking and deciding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptfs.namespace.paths import text_to_name
from ckptfs.namespace.rows import PLACE_NONE
from ckptfs.publish.plan import Kind, Known, Occupant, Scene, Source, Wanted
from ckptfs.types import NO_CONTENT, ROOT_INO, ContentId, ContentState, Ino, Key

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from collections.abc import Set as AbstractSet

    from ckptfs.namespace import Namespace
    from ckptfs.namespace.rows import Content, Inode

PUBLISHABLE = frozenset(
    {
        ContentState.SEALED,
        ContentState.DURABLE,
        ContentState.REPLICATED,
        ContentState.PUBLISHING,
        ContentState.PUBLISHED,
        ContentState.RECLAIMED,
    }
)
"""States of a committed content that its names' keys are to show."""


def locate(namespace: Namespace, key: Key) -> tuple[Ino, bytes] | None:
    """Directory and name that a key (without a slash at its end) stands for; ``None`` without such a directory."""
    *parents, last = key.split("/")
    ino = ROOT_INO
    for text in parents:
        name = text_to_name(text)
        inode = None if name is None else namespace.tree.lookup(ino, name)
        if inode is None or not inode.is_dir:
            return None
        ino = inode.ino
    name = text_to_name(last)
    return None if name is None else (ino, name)


def find(namespace: Namespace, key: Key) -> Inode | None:
    """The inode that a key (without a slash at its end) leads to, or ``None``."""
    place = locate(namespace, key)
    return None if place is None else namespace.tree.lookup(*place)


class View:
    """Reads scenes.

    Args:
        namespace: both sides: the tree and what is known of the bucket.
        in_use: whether a handle reads a content.
        leaving: keys whose object is about to be changed by an attempt under way: they hold nothing any more.
        putting: contents that are going up now, and under which key.
        waits: which key waits for which.
        stuck: keys that nobody should wait for.
        unsynced: keys whose object is known, but not yet on disk.
        secured: contents whose bytes here were made durable.
    """

    def __init__(
        self,
        namespace: Namespace,
        in_use: Callable[[ContentId], bool],
        leaving: AbstractSet[Key],
        putting: Mapping[ContentId, Key],
        waits: Mapping[Key, Key],
        stuck: AbstractSet[Key],
        unsynced: AbstractSet[Key],
        secured: AbstractSet[ContentId],
    ) -> None:
        self._namespace = namespace
        self._in_use = in_use
        self._leaving = leaving
        self._putting = putting
        self._waits = waits
        self._stuck = stuck
        self._unsynced = unsynced
        self._secured = secured

    def scene(self, key: Key) -> Scene:
        """Everything that the decision about ``key`` depends on, as it is now."""
        bucket = self._namespace.bucket
        row = bucket.object(key)
        obligation = bucket.obligation(key)
        wanted = self.wanted(key)
        return Scene(
            wanted,
            None if row is None else Known(row.etag, row.content),
            None if row is None else self._occupant(key, row.content, wanted.content),
            obligation is not None and obligation.tried,
        )

    def wanted(self, key: Key) -> Wanted:
        """What the namespace wants under ``key``."""
        if key.endswith("/"):
            directory = find(self._namespace, Key(key[:-1]))
            return Wanted(Kind.MARKER if directory is not None and directory.is_dir else Kind.ABSENT)
        inode = find(self._namespace, key)
        if inode is None or not inode.is_file:
            return Wanted(Kind.ABSENT)
        content = self._namespace.contents.get(inode.content)
        if content is None or content.state not in PUBLISHABLE:
            return Wanted(Kind.AS_IS)
        return Wanted(
            Kind.CONTENT,
            content.id,
            content.place != PLACE_NONE,
            self.source(content, but=key),
            None if self._putting.get(content.id, key) == key else self._putting[content.id],
        )

    def source(self, content: Content, *, but: Key, certain: bool = False) -> Source | None:
        """An object other than that of ``but`` that is known to hold the content and is not about to be changed.

        Args:
            content: the content.
            but: a key that does not count.
            certain: leave out keys with an attempt whose end nobody saw, or that a power cut would make forget.
        """
        bucket = self._namespace.bucket
        for key in (content.key, *self._keys_wanting(content)):
            row = bucket.object(key) if key and key != but and key not in self._leaving else None
            if row is None or row.content != content.id:
                continue
            obligation = bucket.obligation(key)
            if certain and (key in self._unsynced or (obligation is not None and obligation.tried)):
                continue
            return Source(key, row.etag)
        return None

    def _keys_wanting(self, content: Content) -> list[Key]:
        """Keys of every name whose file is committed to the content."""
        inode = self._namespace.state.inodes.get(content.ino)
        if inode is None or inode.content != content.id:
            return []
        keys = (self._namespace.tree.key_of(parent, name) for parent, name in self._namespace.tree.names_of(inode))
        return [key for key in keys if key is not None]

    def _occupant(self, key: Key, content_id: ContentId, wanted: ContentId) -> Occupant | None:
        if content_id in {NO_CONTENT, wanted}:
            return None
        content = self._namespace.contents.get(content_id)
        if content is None or content.state not in PUBLISHABLE:
            return None
        wanting = [other for other in self._keys_wanting(content) if other != key]
        if not wanting and not self._in_use(content_id):
            return None
        heir = wanting[0] if wanting else None
        return Occupant(
            content_id,
            content.place != PLACE_NONE and content_id in self._secured,
            self.source(content, but=key, certain=True) is not None,
            heir,
            heir is not None and self._is_stuck(heir, key),
        )

    def _is_stuck(self, heir: Key, key: Key) -> bool:
        if heir in self._stuck:
            return True
        seen: set[Key] = set()
        while heir not in seen:
            if heir == key:
                return True
            seen.add(heir)
            following = self._waits.get(heir)
            if following is None:
                return False
            heir = following
        return False
