"""The filesystem, put together."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

from ckptfs.errors import CkptfsError
from ckptfs.vfs.core import Core
from ckptfs.vfs.data import FileData
from ckptfs.vfs.io import FileCalls
from ckptfs.vfs.listing import Listing
from ckptfs.vfs.names import NameCalls
from ckptfs.vfs.openfile import OpenFiles
from ckptfs.vfs.sealing import Sealer
from ckptfs.vfs.xattrs import XattrCalls

if TYPE_CHECKING:
    from collections.abc import Callable

    from ckptfs.disk.base import DiskSpace
    from ckptfs.env import Env
    from ckptfs.namespace import Namespace
    from ckptfs.objectstore.base import ObjectStore
    from ckptfs.staging import Staging
    from ckptfs.types import Ino
    from ckptfs.vfs.core import VfsOptions
    from ckptfs.vfs.data import Reader

REMOVE_INTERVAL_S = 0.2
"""How often staging files of dropped contents are removed."""

log = logging.getLogger(__name__)


class Vfs:
    """A mounted filesystem without its kernel side.

    Attributes:
        core: inodes that the kernel knows, attributes.
        names: calls on names and directories.
        io: calls on open files.
        xattrs: calls on extended attributes.
        listing: what the bucket has.

    Args:
        env: clock and threads.
        namespace: inodes, contents, journal.
        staging: files of contents.
        store: the bucket.
        reader: brings bytes that only the bucket has.
        options: behaviour.
    """

    def __init__(
        self, env: Env, namespace: Namespace, staging: Staging, store: ObjectStore, reader: Reader, options: VfsOptions
    ) -> None:
        self._env = env
        self._staging = staging
        self._forget_name: Callable[[Ino, bytes], None] | None = None
        self._forget_name_now: Callable[[Ino, bytes], None] | None = None
        self._free: Callable[[int], bool] | None = None
        self.files = OpenFiles(namespace, staging)
        self.core = Core(env, namespace, self.files, options)
        self.xattrs = XattrCalls(namespace, self.files)
        self.io = FileCalls(
            self.core,
            FileData(env, namespace, staging, self.files, reader, self._make_room),
            Sealer(env, namespace, staging, self.files),
            self.xattrs,
            self._name_changed_now,
        )
        self.listing = Listing(
            env,
            store,
            namespace,
            self.files,
            options.foreign,
            refresh_s=options.refresh_s,
            changed=self.name_changed,
            dropped=self.core.reap,
        )
        self.names = NameCalls(self.core, self.listing, self.xattrs, self.io)

    def on_full(self, make_room: Callable[[int], bool]) -> None:
        """Call ``make_room`` with a number of bytes when the disk has no room for them; it says if there is hope."""
        self._free = make_room

    def _make_room(self, byte_count: int) -> bool:
        return self._free is not None and self._free(byte_count)

    def on_name_changed(
        self, forget_name: Callable[[Ino, bytes], None], forget_name_now: Callable[[Ino, bytes], None]
    ) -> None:
        """Call one of these when a name leads elsewhere and no call of the kernel made it so.

        Args:
            forget_name: returns at once.
            forget_name_now: returns when the kernel has forgotten the name; called on a thread.
        """
        self._forget_name = forget_name
        self._forget_name_now = forget_name_now

    def _name_changed_now(self, parent: Ino, name: bytes) -> None:
        if self._forget_name_now is not None:
            self._forget_name_now(parent, name)

    def name_changed(self, parent: Ino, name: bytes) -> None:
        """The kernel must forget a name."""
        if self._forget_name is not None:
            self._forget_name(parent, name)

    async def run(self) -> None:
        """Background work: listings, seals of asynchronous closes, removal of dropped staging files.

        Ends when cancelled.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.listing.run)
            nursery.start_soon(self.io.run)
            while True:
                await self._env.sleep(REMOVE_INTERVAL_S)
                try:
                    await self.files.remove_dropped()
                except (OSError, CkptfsError) as error:
                    log.error("staging files cannot be removed: %s", error)  # noqa: TRY400 - no trace

    async def space(self) -> DiskSpace:
        """Space for new bytes: that of the disk under the cache directory."""
        return await self._staging.disk.space(self._staging.root)
