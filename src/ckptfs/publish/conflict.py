"""Two changed one object: the bucket's stands, the mount's is kept beside it, and both are told of."""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING

from ckptfs.errors import PosixError
from ckptfs.namespace.paths import NAME_BYTES_MAX
from ckptfs.namespace.tree import RENAME_NOREPLACE
from ckptfs.publish.hooks import Conflict
from ckptfs.publish.view import locate

if TYPE_CHECKING:
    from ckptfs.namespace import Namespace
    from ckptfs.objectstore.base import ObjectInfo
    from ckptfs.publish.hooks import Hooks
    from ckptfs.types import Ino, Key

CONFLICTS_KEPT = 1000

log = logging.getLogger(__name__)


def conflict_name(name: bytes, lsn: int, attempt: int) -> bytes:
    """The name for the mount's content: ``NAME.ckptfs-conflict-LSN``, its beginning cut where it would be too long."""
    suffix = f".ckptfs-conflict-{lsn}{f'-{attempt}' if attempt else ''}".encode()
    return name[: NAME_BYTES_MAX - len(suffix)] + suffix


class Conflicts:
    """Settles conflicts in the namespace; plain, so that nothing comes between.

    Args:
        namespace: the tree and what is known of the bucket.
        hooks: to show the bucket's object.
    """

    def __init__(self, namespace: Namespace, hooks: Hooks) -> None:
        self._namespace = namespace
        self._hooks = hooks
        self.found: deque[Conflict] = deque(maxlen=CONFLICTS_KEPT)
        """The newest conflicts, oldest first."""

    def settle(self, key: Key, info: ObjectInfo) -> None:
        """The bucket holds ``info`` under ``key``, which neither was known nor is ours: let it stand."""
        bucket = self._namespace.bucket
        bucket.try_settled(key)
        place = locate(self._namespace, key) if not key.endswith("/") else None
        if place is None:
            bucket.lacks(key)
            self._tell(key, "")
            return
        inode = self._namespace.tree.lookup(*place)
        if inode is not None and not inode.is_file:
            bucket.lacks(key)
            self._tell(key, "")
            return
        kept_as = "" if inode is None else self._keep_beside(*place)
        bucket.lacks(key)
        self._hooks.adopt(*place, info)
        self._hooks.name_changed(*place)
        self._tell(key, kept_as)

    def _keep_beside(self, parent: Ino, name: bytes) -> str:
        tree = self._namespace.tree
        attempt = 0
        while True:
            beside = conflict_name(name, self._namespace.state.lsn, attempt)
            try:
                tree.rename(parent, name, parent, beside, RENAME_NOREPLACE)
            except PosixError:
                attempt += 1
                if attempt > 100:
                    raise
            else:
                break
        self._hooks.name_changed(parent, beside)
        return tree.key_of(parent, beside) or ""

    def _tell(self, key: Key, kept_as: str) -> None:
        conflict = Conflict(key, kept_as, self._namespace.state.lsn)
        self.found.append(conflict)
        if kept_as:
            log.warning(
                "object %r was changed behind the mount's back: it stands, this mount's is kept as %r", key, kept_as
            )
        else:
            log.warning("object %r was changed behind the mount's back while the mount was deleting it: it stands", key)
