"""The namespace: inodes, names, contents, what the bucket holds, and the journal, durable in one SQLite file.

The tree is a tree and link counts are true at every instant; every mutation and its journal record are one
transaction; nothing is promised durable before its record is (:meth:`State.sync`). May import the foundation only,
and ``apsw`` nowhere else. Reads and mutations are plain functions; only what waits for the disk is asynchronous.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptfs.namespace.bucket import Bucket
from ckptfs.namespace.contents import Contents
from ckptfs.namespace.state import State
from ckptfs.namespace.tree import Tree

if TYPE_CHECKING:
    from pathlib import Path

    from ckptfs.env import Env

__all__ = ["Bucket", "Contents", "Namespace", "State", "Tree"]


class Namespace:
    """The parts of a namespace, wired.

    Attributes:
        state: tables, journal and commits.
        tree: inodes and names.
        contents: generations of bytes.
        bucket: objects and obligations.
    """

    def __init__(self, env: Env, path: Path) -> None:
        self.state = State(env, path)
        self.bucket = Bucket(self.state)
        self.tree = Tree(self.state, self.bucket)
        self.contents = Contents(self.state, self.tree, self.bucket)
