"""What every call of the filesystem stands on: inodes that the kernel knows, attributes, and what is allowed now."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ckptfs.errors import PosixError
from ckptfs.types import CloseMode, Ino

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ckptfs.env import Env
    from ckptfs.namespace import Namespace
    from ckptfs.namespace.rows import Inode
    from ckptfs.vfs.listing import ForeignAttributes
    from ckptfs.vfs.openfile import OpenFiles


class Attributes(NamedTuple):
    """What stat(2) tells: the inode's row (not to be kept), the live size, and how much of it is no hole, in bytes."""

    inode: Inode
    size: int
    allocated: int


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


class Core:
    """State that the calls share.

    Args:
        env: clock and threads.
        namespace: inodes, contents, journal.
        files: open files.
        options: behaviour.
    """

    def __init__(self, env: Env, namespace: Namespace, files: OpenFiles, options: VfsOptions) -> None:
        self.env = env
        self.tree = namespace.tree
        self.state = namespace.state
        self.files = files
        self.options = options
        self.draining = False
        """Set when the mount accepts no new writers."""
        self._lookups: dict[Ino, int] = {}

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
        inode = self.state.inodes.get(ino)
        if inode is None or inode.nlink:
            return
        content = inode.content
        self.tree.reap(ino)
        self.files.drop_if_unused(content)

    def attributes(self, ino: Ino) -> Attributes:
        """Attributes of an inode."""
        return self.attributes_of(self.tree.inode(ino))

    def attributes_of(self, inode: Inode) -> Attributes:
        """Attributes of the inode of a row."""
        file = self.files.get(inode.ino)
        if file is None:
            return Attributes(inode, inode.size, inode.allocated)
        return Attributes(inode, file.size, file.allocated)

    def may_change(self) -> None:
        """Raise unless the mount takes changes now."""
        if self.options.read_only or self.draining:
            raise PosixError(errno.EROFS)
        self.state.check()
