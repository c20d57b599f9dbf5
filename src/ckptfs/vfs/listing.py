"""The bucket as it is, seen as directories: listing on demand, and noticing what others changed.

What cannot be shown is hidden, counted by reason, and never touched: keys that no file can have, an object whose name
a directory has (the directory wins), and objects below a name that something else than a directory has.

A directory is listed when it is first looked into, and again when somebody looks and the last listing is older than
``refresh_s`` (or, for a large one, than :data:`REFRESH_COST_FACTOR` times what that listing took). A look at a
listing half that old begins the next one in the background, so a directory in use is never waited for.
"""

from __future__ import annotations

import logging
import stat
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import trio

from ckptfs.errors import StoreError
from ckptfs.namespace.paths import join, text_to_name, unnameable
from ckptfs.namespace.tree import LISTED, LISTED_BORN_THERE, LISTED_NOT
from ckptfs.types import NO_CONTENT, RESERVED_PREFIX, ROOT_INO, Ino, Key

if TYPE_CHECKING:
    from collections.abc import Callable

    from ckptfs.env import Env
    from ckptfs.namespace import Namespace
    from ckptfs.namespace.rows import Inode
    from ckptfs.objectstore.base import ListPage, ObjectInfo, ObjectStore
    from ckptfs.vfs.openfile import OpenFiles

REFRESH_COST_FACTOR = 20
_WAIT_S_MAX = 5.0
"""How long a look waits for a second listing before it takes what the first one found."""
_SAMPLES_MAX = 20

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ForeignAttributes:
    """What files and directories that other tools made look like."""

    uid: int
    gid: int
    file_mode: int = 0o644
    dir_mode: int = 0o755


@dataclass(slots=True)
class _Listed:
    at_s: float
    took_s: float
    hidden: Counter[str] = field(default_factory=Counter)


class Listing:
    """What the bucket holds below each directory.

    Args:
        env: clock.
        store: the bucket.
        namespace: where what is found is kept.
        files: to leave files alone that are being written.
        foreign: attributes for what other tools made.
        refresh_s: how old a listing may get, seconds.
        changed: called with (parent, name) when a name goes or leads elsewhere, so that the kernel forgets it.
    """

    def __init__(
        self,
        env: Env,
        store: ObjectStore,
        namespace: Namespace,
        files: OpenFiles,
        foreign: ForeignAttributes,
        *,
        refresh_s: float,
        changed: Callable[[Ino, bytes], None],
        dropped: Callable[[Ino], None],
    ) -> None:
        self._env = env
        self._store = store
        self._namespace = namespace
        self._files = files
        self._foreign = foreign
        self._refresh_s = refresh_s
        self._changed = changed
        self._dropped = dropped
        self._listed: dict[Ino, _Listed] = {}
        self._running: dict[Ino, trio.Event] = {}
        self._errors: dict[Ino, StoreError] = {}
        self._nursery: trio.Nursery | None = None
        self.hidden_samples: list[str] = []
        """Some keys that are hidden, for people."""

    async def run(self) -> None:
        """Home of background listings; ends when cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            await trio.sleep_forever()

    def born(self, directory: Ino) -> None:
        """A directory was just made here: there is nothing to list for a while."""
        self._remember(directory, _Listed(self._env.monotonic_s(), 0.0))

    def _remember(self, directory: Ino, listed: _Listed) -> None:
        self._listed.pop(directory, None)
        self._listed[directory] = listed
        if len(self._listed) > 100_000:
            del self._listed[next(iter(self._listed))]

    def hidden(self) -> dict[str, int]:
        """How many objects are hidden, by reason, over the directories that were looked into."""
        total: Counter[str] = Counter()
        for listed in self._listed.values():
            total.update(listed.hidden)
        return dict(total)

    def is_fresh(self, directory: Inode) -> bool:
        """Whether :meth:`look` has nothing to do."""
        listed = self._listed.get(directory.ino)
        return (
            listed is not None
            and directory.listed != LISTED_NOT
            and self._env.monotonic_s() - listed.at_s <= max(self._refresh_s, listed.took_s * REFRESH_COST_FACTOR) / 2
        ) or directory.nlink == 0

    async def look(self, directory: Inode) -> None:
        """Return when the namespace shows ``directory`` as the bucket has it, at most a refresh ago.

        Raises:
            StoreError: it was never listed and cannot be now.
        """
        ino = directory.ino
        if self.is_fresh(directory):
            await trio.lowlevel.checkpoint()
            return
        never = directory.listed == LISTED_NOT
        listed = self._listed.get(ino)
        if listed is not None and not never:
            age_s = self._env.monotonic_s() - listed.at_s
            limit_s = max(self._refresh_s, listed.took_s * REFRESH_COST_FACTOR)
            if age_s <= limit_s or limit_s > self._refresh_s:
                self.start(ino)
                return
        done = self.start(ino)
        if never:
            await done.wait()
            if ino in self._errors:
                raise self._errors[ino]
            return
        with trio.move_on_after(_WAIT_S_MAX) as waited:
            await done.wait()
        if waited.cancelled_caught and (listed := self._listed.get(ino)) is not None:
            log.warning("directory %s is shown as it was last seen: the store does not answer", ino)
            listed.at_s = self._env.monotonic_s()

    def start(self, ino: Ino) -> trio.Event:
        """Begin a listing, unless one is running; its end."""
        running = self._running.get(ino)
        if running is None:
            running = self._running[ino] = trio.Event()
            assert self._nursery is not None, "run() is not running"
            self._nursery.start_soon(self._list, ino, running)
        return running

    async def _list(self, ino: Ino, done: trio.Event) -> None:
        try:
            await self._list_all(ino)
            self._errors.pop(ino, None)
        except StoreError as error:
            log.warning("directory %s cannot be listed: %s", ino, error)
            self._errors[ino] = error
            inode = self._namespace.state.inodes.get(ino)
            if inode is not None and inode.listed != LISTED_NOT:
                self._remember(ino, _Listed(self._env.monotonic_s(), 0.0))
        finally:
            del self._running[ino]
            done.set()

    async def _list_all(self, ino: Ino) -> None:
        prefix = self._namespace.tree.prefix_of(ino)
        if prefix is None:
            return
        began_s = self._env.monotonic_s()
        merge = _Merge(self, ino, prefix)
        mark = self._namespace.bucket.begin_listing()
        try:
            token: str | None = None
            while True:
                page = await self._store.list_page(prefix, delimiter="/", token=token)
                if not merge.page(page, mark):
                    return
                await self._namespace.state.throttle()
                token = page.next_token
                if token is None:
                    break
            await merge.remove_unseen(mark)
        finally:
            self._namespace.bucket.end_listing()
        inode = self._namespace.state.inodes.get(ino)
        if inode is None or self._namespace.tree.prefix_of(ino) != prefix:
            return
        inode.hidden = merge.hidden.total()
        if inode.listed == LISTED_NOT:
            inode.listed = LISTED if ino == ROOT_INO else LISTED_BORN_THERE
        self._namespace.state.inodes.mark(ino)
        self._namespace.state.touch()
        self._remember(ino, _Listed(self._env.monotonic_s(), self._env.monotonic_s() - began_s, merge.hidden))

    async def complete_below(self, directory: Inode) -> None:
        """List everything below a directory that was never looked into, so that it can be moved as a whole."""
        todo = [directory.ino]
        while todo:
            ino = todo.pop()
            inode = self._namespace.tree.inode(ino)
            if inode.listed == LISTED_NOT:
                await self.look(inode)
            after = 0
            while entries := self._namespace.tree.readdir(ino, after, 1000):
                todo.extend(child.ino for _, _, child in entries if child.is_dir)
                after = entries[-1][0]
                await trio.lowlevel.checkpoint()

    # --- what is found

    def adopt_object(self, parent: Ino, name: bytes, info: ObjectInfo) -> Inode:
        """Show an object as a file under a new name."""
        namespace = self._namespace
        inode = namespace.tree.adopt(
            parent, name, stat.S_IFREG | self._foreign.file_mode, self._foreign.uid, self._foreign.gid, info.mtime_ns
        )
        content = namespace.contents.from_bucket(inode.ino, info.key, info.etag, info.size)
        inode.content, inode.size, inode.allocated = content.id, info.size, info.size
        namespace.bucket.holds(info.key, info, content.id)
        return inode

    def replace_object(self, parent: Ino, name: bytes, info: ObjectInfo) -> None:
        """Another tool replaced the object of a file.

        The name leads to a new inode; who has the old one open keeps it.
        """
        old = self._namespace.tree.forget_name(parent, name)
        self.adopt_object(parent, name, info)
        self._changed(parent, name)
        self._dropped(old.ino)

    def adopt_directory(self, parent: Ino, name: bytes) -> None:
        """Show a prefix as a directory."""
        self._namespace.tree.adopt(
            parent,
            name,
            stat.S_IFDIR | self._foreign.dir_mode,
            self._foreign.uid,
            self._foreign.gid,
            self._env.wall_ns(),
        )

    def remove(self, parent: Ino, name: bytes) -> None:
        """What a name stood for is no longer in the bucket."""
        old = self._namespace.tree.forget_name(parent, name)
        self._changed(parent, name)
        self._dropped(old.ino)

    def is_busy(self, key: str, mark: int) -> bool:
        """Whether ckptfs itself is about to change, or just changed, a key (keys below it, if it ends in a slash)."""
        bucket = self._namespace.bucket
        if bucket.changed_since(key, mark):
            return True
        if key.endswith("/"):
            return bucket.obliged_below(key)
        return bucket.obligation(Key(key)) is not None or bucket.covering_move(key)

    def is_being_written(self, inode: Inode) -> bool:
        """Whether a writer has a content of the file that is not committed."""
        file = self._files.get(inode.ino)
        return file is not None and (file.writers > 0 or file.content != inode.content)


class _Merge:
    """One listing of one directory on its way into the namespace."""

    def __init__(self, listing: Listing, ino: Ino, prefix: str) -> None:
        self._listing = listing
        self._namespace = listing._namespace  # noqa: SLF001 - one role in two classes
        self._ino = ino
        self._prefix = prefix
        self._first_new = self._namespace.state.next_dentry
        self._seen = bytearray(self._first_new // 8 + 1)
        self.hidden: Counter[str] = Counter()

    def _hide(self, key: str, reason: str) -> None:
        self.hidden[reason] += 1
        samples = self._listing.hidden_samples
        if len(samples) < _SAMPLES_MAX and key not in samples:
            samples.append(key)
            log.warning("object %r cannot be shown: %s", key, reason)

    def _see(self, position: int) -> None:
        if position < self._first_new:
            self._seen[position >> 3] |= 1 << (position & 7)

    def page(self, page: ListPage, mark: int) -> bool:
        """Merge a page; ``False`` when the directory went away or moved meanwhile."""
        if self._namespace.tree.prefix_of(self._ino) != self._prefix:
            return False
        for prefix in page.prefixes:
            if prefix != RESERVED_PREFIX:
                self._prefix_found(prefix, mark)
        for info in page.objects:
            self._object_found(info, mark)
        return True

    def _prefix_found(self, prefix: str, mark: int) -> None:
        text = prefix[len(self._prefix) : -1]
        name = text_to_name(text)
        if name is None:
            self._hide(prefix, unnameable(text))
            return
        dentry = self._namespace.tree.dentry(self._ino, name)
        if dentry is None:
            if not self._listing.is_busy(prefix, mark):
                self._listing.adopt_directory(self._ino, name)
            return
        inode = self._namespace.tree.inode(dentry.ino)
        self._see(dentry.id)
        if inode.is_dir:
            return
        key = Key(prefix[:-1])
        known = self._namespace.bucket.object(key)
        if known is not None and known.content == inode.content and not self._listing.is_being_written(inode):
            self._listing.remove(self._ino, name)
            self._listing.adopt_directory(self._ino, name)
        elif not self._listing.is_busy(prefix, mark):
            self._hide(prefix, "a file has the directory's name")

    def _object_found(self, info: ObjectInfo, mark: int) -> None:
        text = info.key[len(self._prefix) :]
        bucket = self._namespace.bucket
        if not text:
            if not self._listing.is_busy(info.key, mark) and bucket.object(info.key) is None:
                bucket.holds(info.key, info, NO_CONTENT)
            return
        name = text_to_name(text)
        if name is None:
            self._hide(info.key, unnameable(text))
            return
        dentry = self._namespace.tree.dentry(self._ino, name)
        if dentry is None:
            if not self._listing.is_busy(info.key, mark):
                self._listing.adopt_object(self._ino, name, info)
            return
        self._see(dentry.id)
        inode = self._namespace.tree.inode(dentry.ino)
        if not inode.is_file:
            self._hide(info.key, "a directory has the object's name" if inode.is_dir else "something else has the name")
            return
        known = bucket.object(info.key)
        if known is not None and known.etag == info.etag:
            return
        if not self._listing.is_busy(info.key, mark) and not self._listing.is_being_written(inode):
            self._listing.replace_object(self._ino, name, info)

    async def remove_unseen(self, mark: int) -> None:
        """Names that were there when the listing began and whose objects it did not show: others deleted them."""
        after = 0
        while entries := self._namespace.tree.readdir(self._ino, after, 500):
            for position, name, inode in entries:
                if position >= self._first_new:
                    return
                if not self._seen[position >> 3] & 1 << (position & 7) and self._is_gone(name, inode, mark):
                    self._listing.remove(self._ino, name)
            after = entries[-1][0]
            await trio.lowlevel.checkpoint()

    def _is_gone(self, name: bytes, inode: Inode, mark: int) -> bool:
        key = join(self._prefix, name)
        bucket = self._namespace.bucket
        if inode.is_file:
            if bucket.object(key) is None or self._listing.is_busy(key, mark) or self._listing.is_being_written(inode):
                return False
            bucket.lacks(key)
            return True
        if not inode.is_dir or inode.listed == LISTED or self._listing.is_busy(f"{key}/", mark):
            return False
        if self._namespace.tree.is_empty(inode.ino):
            return True
        self._listing.start(inode.ino)
        return False
