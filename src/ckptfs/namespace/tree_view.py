"""The tree as it is: plain reads."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from ckptfs.errors import PosixError
from ckptfs.namespace.paths import join
from ckptfs.namespace.rows import Dentry, Inode
from ckptfs.types import ROOT_INO, Ino, Key

if TYPE_CHECKING:
    from ckptfs.namespace.state import State


class TreeView:
    """Inodes and names, to be read.

    Args:
        state: the tables.
    """

    def __init__(self, state: State) -> None:
        self._state = state

    def inode(self, ino: Ino) -> Inode:
        """The inode; not to be held over an await.

        Raises:
            PosixError: ESTALE, there is no such inode any more.
        """
        inode = self._state.inodes.get(ino)
        if inode is None:
            raise PosixError(errno.ESTALE)
        return inode

    def dentry(self, parent: Ino, name: bytes) -> Dentry | None:
        """The name in a directory, or ``None``."""
        return self._state.dentries.get((parent, name))

    def lookup(self, parent: Ino, name: bytes) -> Inode | None:
        """The inode that a name leads to, or ``None``."""
        dentry = self._state.dentries.get((parent, name))
        return None if dentry is None else self.inode(dentry.ino)

    def _must(self, parent: Ino, name: bytes) -> Dentry:
        dentry = self._state.dentries.get((parent, name))
        if dentry is None:
            raise PosixError(errno.ENOENT)
        return dentry

    def readdir(self, parent: Ino, after: int, limit: int) -> list[tuple[int, bytes, Inode]]:
        """Up to ``limit`` entries behind position ``after``, in order of position.

        Their inodes are not to be changed. An empty answer means that there are no more; a shorter one than ``limit``
        does not.
        """
        state = self._state
        found: list[tuple[int, bytes, Inode]] = []
        while not found:
            rows = state.database.query(
                "SELECT d.id, d.name, i.* FROM dentry d JOIN inode i ON i.ino = d.ino"
                " WHERE d.parent = ? AND d.id > ? ORDER BY d.id LIMIT ?",
                (parent, after, limit),
            )
            for position, name, *columns in rows:
                known, dentry = state.dentries.peek((parent, name))
                if known and (dentry is None or dentry.id != position):
                    continue
                ino = columns[0] if dentry is None else dentry.ino
                in_memory, inode = state.inodes.peek(ino)
                if not in_memory:
                    inode = Inode(*columns) if ino == columns[0] else state.inodes.get(ino)
                if inode is not None:
                    found.append((position, name, inode))
            if rows:
                after = rows[-1][0]
            if len(rows) < limit:
                found.extend(self._fresh_behind(parent, after, limit))
                break
        return found

    def _fresh_behind(self, parent: Ino, after: int, limit: int) -> list[tuple[int, bytes, Inode]]:
        """Entries that are not in the file yet: their positions are behind all that are."""
        fresh = self._state.fresh_names.get(parent, {})
        entries = []
        for position in sorted(position for position in fresh if position > after)[:limit]:
            dentry = self._state.dentries.get((parent, fresh[position]))
            assert dentry is not None, "a fresh name is in memory"
            assert dentry.id == position, "a fresh name keeps its position"
            entries.append((position, fresh[position], self.inode(dentry.ino)))
        return entries

    def is_empty(self, ino: Ino) -> bool:
        """Whether a directory has no entries."""
        return not self.readdir(ino, 0, 2)

    def names_of(self, inode: Inode) -> list[tuple[Ino, bytes]]:
        """Every (parent, name) that leads to the inode."""
        if inode.nlink == 0:
            return []
        names = self._state.names.get(inode.ino) if not inode.is_dir else None
        return [(inode.parent, inode.name)] if names is None else sorted(names.names)

    def prefix_of(self, directory: Ino) -> str | None:
        """What the keys in a directory begin with (empty for the root, else ending in a slash).

        ``None`` when it is removed.
        """
        parts: list[str] = []
        ino = directory
        while ino != ROOT_INO:
            inode = self._state.inodes.get(ino)
            if inode is None or inode.nlink == 0:
                return None
            parts.append(join("", inode.name))
            ino = inode.parent
        return "".join(f"{part}/" for part in reversed(parts))

    def key_of(self, parent: Ino, name: bytes) -> Key | None:
        """The key of a name; ``None`` when its directory is removed."""
        prefix = self.prefix_of(parent)
        return None if prefix is None else join(prefix, name)

    def _is_below(self, ino: Ino, ancestor: Ino) -> bool:
        while True:
            if ino == ancestor:
                return True
            if ino == ROOT_INO:
                return False
            inode = self._state.inodes.get(ino)
            if inode is None or inode.nlink == 0:
                return False
            ino = inode.parent
