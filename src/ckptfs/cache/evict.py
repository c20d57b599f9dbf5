"""Eviction: clean bytes are kept under a bound; those that were not used for longest go first.

Only bytes that the bucket is known to hold are ever evicted. The index of them is bounded: what does not fit is older
than everything in it, only counted, and found again in the namespace when it is its turn.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import trio

from ckptfs.errors import CkptfsError
from ckptfs.namespace.contents import UNPUBLISHED
from ckptfs.namespace.rows import PLACE_FILE, PLACE_NONE
from ckptfs.types import ContentId, ContentState, Key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ckptfs.cache.fetch import Fetcher
    from ckptfs.env import Env
    from ckptfs.namespace import Namespace
    from ckptfs.namespace.rows import Content
    from ckptfs.staging import Staging

BATCH_COUNT = 256
"""Contents that are evicted with one sync of the journal."""

SCAN_COUNT = 1024
"""Contents that are looked at before others get their turn."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CacheLimits:
    """Bounds of the cache.

    Attributes:
        cache_bytes: clean bytes that are kept.
        index_count: contents whose order of use is known.
        retry_s: how long to wait when nothing could be evicted though it should, seconds.
    """

    cache_bytes: int
    index_count: int = 100_000
    retry_s: float = 1.0

    @property
    def low_bytes(self) -> int:
        """How far an eviction goes, so that it is not needed again at once."""
        return self.cache_bytes - self.cache_bytes // 20


@dataclass(frozen=True, slots=True)
class Choice:
    """What a look at the oldest contents decided.

    Attributes:
        victims: to be evicted.
        kept: too old but needed: they count as used now.
    """

    victims: list[ContentId]
    kept: list[ContentId]


def choose(oldest: Iterable[tuple[ContentId, int]], surplus_bytes: int, needed: Callable[[ContentId], bool]) -> Choice:
    """Which contents go, so that ``surplus_bytes`` less are kept.

    Args:
        oldest: contents and the bytes that each would free, the one that was not used for longest first.
        surplus_bytes: how much is to be freed.
        needed: whether a content must stay.
    """
    choice = Choice([], [])
    freed = 0
    for scanned, (content, size) in enumerate(oldest):
        if freed >= surplus_bytes or scanned >= SCAN_COUNT or len(choice.victims) >= BATCH_COUNT:
            break
        if needed(content):
            choice.kept.append(content)
        else:
            choice.victims.append(content)
            freed += size
    return choice


class Evictor:
    """Keeps clean bytes under their bound. Also the home of the fetcher's requests (:meth:`run`).

    Args:
        env: waiting.
        namespace: the contents.
        staging: their files.
        limits: bounds.
        fetcher: has contents that are partly here.
        in_use: whether a handle reads a content.
    """

    def __init__(
        self,
        env: Env,
        namespace: Namespace,
        staging: Staging,
        limits: CacheLimits,
        *,
        fetcher: Fetcher,
        in_use: Callable[[ContentId], bool],
    ) -> None:
        self._env = env
        self._namespace = namespace
        self._staging = staging
        self._limits = limits
        self._fetcher = fetcher
        self._in_use = in_use
        self._index: OrderedDict[ContentId, int] = OrderedDict()
        self._indexed_bytes = 0
        self._unindexed_bytes = 0
        self._cursor = ContentId(0)
        self._surplus = trio.Event()
        self._squeezed_bytes: int | None = None
        namespace.contents.on_publish.append(self._on_publish)
        namespace.contents.on_drop.append(self._on_drop)
        fetcher.grown = self._set

    @property
    def total_bytes(self) -> int:
        """Clean bytes that are here, those of contents that are partly here included."""
        return self._indexed_bytes + self._unindexed_bytes

    def squeeze(self, byte_count: int) -> bool:
        """The disk is full: free so many bytes more than the bound asks for. Whether there are any clean bytes."""
        self._squeezed_bytes = max(0, self.total_bytes - byte_count)
        if self.total_bytes:
            self._surplus.set()
        return self.total_bytes > 0

    def touch(self, content: ContentId) -> None:
        """A content was used."""
        if content in self._index:
            self._index.move_to_end(content)

    def _set(self, content: ContentId, byte_count: int) -> None:
        """So many bytes of a content are here, as of now; none: it is forgotten."""
        self._indexed_bytes -= self._index.pop(content, 0)
        if not byte_count:
            return
        self._index[content] = byte_count
        self._indexed_bytes += byte_count
        if len(self._index) > self._limits.index_count:
            _, oldest_bytes = self._index.popitem(last=False)
            self._indexed_bytes -= oldest_bytes
            self._unindexed_bytes += oldest_bytes
        if self.total_bytes > self._limits.cache_bytes:
            self._surplus.set()

    def _on_publish(self, content: Content) -> None:
        if content.place != PLACE_NONE:
            self._set(content.id, content.size)

    def _on_drop(self, content: Content) -> None:
        if content.id in self._index:
            self._set(content.id, 0)
        elif content.state is ContentState.PUBLISHED and content.place != PLACE_NONE:
            self._unindexed_bytes = max(0, self._unindexed_bytes - content.size)

    async def run(self) -> None:
        """Evict whenever there is too much, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._fetcher.run)
            await self._load()
            while True:
                await self._surplus.wait()
                try:
                    evicted = await self._evict_some()
                except (CkptfsError, OSError) as error:
                    log.warning("the cache cannot be kept within its bound: %s", error)
                    evicted = 0
                if self._surplus_bytes() <= 0:
                    self._squeezed_bytes = None
                    self._surplus = trio.Event()
                elif not evicted:
                    await self._env.sleep(self._limits.retry_s)

    def _surplus_bytes(self) -> int:
        """Bytes over the bound, or over what :meth:`squeeze` left of it."""
        squeezed = self._limits.cache_bytes if self._squeezed_bytes is None else self._squeezed_bytes
        return self.total_bytes - min(squeezed, self._limits.cache_bytes)

    async def _load(self) -> None:
        """Count what an earlier life left."""
        after = ContentId(0)
        while page := self._namespace.contents.clean(after, 1000):
            for content, size in page:
                if content not in self._index:
                    self._set(content, size)
            after = page[-1][0]
            await trio.lowlevel.checkpoint()

    async def _evict_some(self) -> int:
        """One batch; how many contents were evicted."""
        surplus = max(self._surplus_bytes(), self.total_bytes - self._limits.low_bytes)
        page = self._unindexed_page() if self._unindexed_bytes else []
        oldest = [*page, *islice(self._index.items(), SCAN_COUNT - len(page))]
        choice = choose(oldest, surplus, self._is_needed)
        looked_at = dict(page).keys() & {*choice.victims, *choice.kept}
        self._cursor = max(looked_at, default=self._cursor)
        self._keep(choice.kept, dict(page))
        partial = {content for content in choice.victims if self._place(content) == PLACE_NONE}
        count = await self._evict([content for content in choice.victims if content not in partial])
        for content in partial:
            if await self._fetcher.drop(content) or not self._fetcher.is_fetching(content):
                self._set(content, 0)
                count += 1
        return count

    def _unindexed_page(self) -> list[tuple[ContentId, int]]:
        """Some clean contents whose order of use is not known: they are older than those of the index."""
        while page := self._namespace.contents.clean(self._cursor, SCAN_COUNT // 2):
            unindexed = [(content, size) for content, size in page if content not in self._index]
            if unindexed:
                return unindexed
            self._cursor = page[-1][0]
        # All were looked at: what was needed is in the index now.
        self._cursor = ContentId(0)
        self._unindexed_bytes = 0
        return []

    def _keep(self, kept: list[ContentId], unindexed: dict[ContentId, int]) -> None:
        """Contents that are needed count as used now; those that are not clean any more do not count."""
        for content_id in kept:
            content = self._namespace.contents.get(content_id)
            if content is not None and content.state not in {ContentState.PUBLISHED, ContentState.RECLAIMED}:
                self._forget(content)
            elif content_id in unindexed:
                self._unindexed_bytes = max(0, self._unindexed_bytes - unindexed[content_id])
                self._set(content_id, unindexed[content_id])
            else:
                self.touch(content_id)

    def _place(self, content_id: ContentId) -> int:
        content = self._namespace.contents.get(content_id)
        return PLACE_NONE if content is None else content.place

    def _is_needed(self, content_id: ContentId) -> bool:
        """Whether the bytes here must stay: someone reads them, or the bucket is not known to hold them."""
        content = self._namespace.contents.get(content_id)
        if content is None or content.place == PLACE_NONE:
            return self._fetcher.is_fetching(content_id)
        return self._in_use(content_id) or not self.is_backed(content)

    def is_backed(self, content: Content) -> bool:
        """Whether the bucket is known to hold the content, so that nothing is lost when it is evicted."""
        if content.state is not ContentState.PUBLISHED or not content.key:
            return False
        row = self._namespace.bucket.object(Key(content.key))
        return row is not None and row.content == content.id

    async def _evict(self, victims: list[ContentId]) -> int:
        """Let the bytes of clean contents go: first in the journal, durably, then on the disk."""
        if not victims:
            await trio.lowlevel.checkpoint()
            return 0
        async with self._fetcher.guard.removing(victims):
            files: list[ContentId] = []
            for content_id in victims:
                content = self._namespace.contents.get(content_id)
                assert content is not None, f"content {content_id} was there when it was chosen"
                assert content.state not in UNPUBLISHED, f"content {content_id} is nowhere but here"
                assert self.is_backed(content), f"content {content_id} is in no known object"
                if content.place == PLACE_FILE:
                    files.append(content_id)
                self._forget(content)
                content.place, content.data = PLACE_NONE, None
                self._namespace.contents.move(content, ContentState.RECLAIMED)
            lsn = self._namespace.state.record("evict", count=len(victims))
            await self._namespace.state.sync(lsn)
            for content_id in files:
                await self._staging.remove(content_id)
        return len(victims)

    def _forget(self, content: Content) -> None:
        if content.id in self._index:
            self._set(content.id, 0)
        else:
            self._unindexed_bytes = max(0, self._unindexed_bytes - content.size)
