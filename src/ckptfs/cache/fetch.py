"""Read-back: bytes of contents that only the bucket has, block by block.

Each block is fetched once and proven where its digest is known. Blocks go into a sparse file in staging. Once all are
there the content is a clean one like any other, and survives a restart; before that its blocks are known in memory
only.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from ckptfs.cache.files import FileGuard
from ckptfs.cache.partial import Flight, Partial
from ckptfs.cache.readahead import observe, runs
from ckptfs.cache.source import ObjectSource
from ckptfs.errors import (
    CkptfsError,
    IntegrityError,
)
from ckptfs.namespace.rows import PLACE_FILE, PLACE_INLINE, PLACE_NONE
from ckptfs.staging import BLOCK_BYTES
from ckptfs.types import ContentId, ContentState

if TYPE_CHECKING:
    from collections.abc import Callable

    from ckptfs.env import Env
    from ckptfs.namespace import Namespace
    from ckptfs.namespace.rows import Content
    from ckptfs.objectstore.base import ObjectStore
    from ckptfs.staging import Staging

_OPEN_MAX = 512

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """Bounds of read-back.

    Attributes:
        group_blocks: most blocks of one request.
        demand_count: requests under way that a reader waits for.
        ahead_count: requests under way that nobody waits for yet.
        window_bytes: how far ahead of a stream is fetched.
        request_s: how long a request may take, seconds, besides what its bytes need.
        read_s: how long a read tries again while the store is away, seconds.
        retry_first_s: shortest and
        retry_most_s: longest wait between two tries, seconds.
    """

    group_blocks: int = 4
    demand_count: int = 8
    ahead_count: int = 8
    window_bytes: int = 32 << 20
    request_s: float = 90.0
    read_s: float = 120.0
    retry_first_s: float = 0.1
    retry_most_s: float = 5.0


class Fetcher:
    """Brings contents from the bucket.

    Args:
        env: clock, threads, jitter.
        store: the bucket.
        namespace: where each content is.
        staging: where its blocks go.
        limits: bounds.
    """

    def __init__(
        self, env: Env, store: ObjectStore, namespace: Namespace, staging: Staging, limits: FetchLimits | None = None
    ) -> None:
        self._env = env
        self._namespace = namespace
        self._staging = staging
        self._disk = staging.disk
        self._limits = limits or FetchLimits()
        self._source = ObjectSource(env, store, namespace, self._limits)
        self._partials: dict[ContentId, Partial] = {}
        self._nursery: trio.Nursery | None = None
        self._demand = trio.CapacityLimiter(self._limits.demand_count)
        self._ahead = trio.CapacityLimiter(self._limits.ahead_count)
        self._settle_limiter = trio.CapacityLimiter(2)
        self.guard = FileGuard()
        self.grown: Callable[[ContentId, int], None] = lambda _content, _bytes: None
        """Told how many bytes of a content are here now, while they are not all; 0 when they are gone."""
        namespace.contents.on_drop.append(self._on_drop)

    async def run(self) -> None:
        """Home of the requests. Ends when cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                await trio.sleep_forever()
        finally:
            self._nursery = None
            with trio.CancelScope(shield=True):
                for partial in list(self._partials.values()):
                    await self._close(partial)

    def is_fetching(self, content: ContentId) -> bool:
        """Whether some blocks of the content are here, or on their way, and someone is at work on them."""
        partial = self._partials.get(content)
        return partial is not None and (partial.users > 0 or bool(partial.flights) or partial.settling is not None)

    # --- reading

    async def read(self, content_id: ContentId, offset: int, length: int) -> bytes:
        """Exactly ``length`` bytes of the content from ``offset``; the caller keeps within its size.

        Raises:
            IntegrityError: they are not what was sealed, or the object was changed behind the mount's back.
            StoreError: the bucket cannot be reached, for longer than ``read_s``.
        """
        if length == 0:
            await trio.lowlevel.checkpoint()
            return b""
        while True:
            content = self._source.content(content_id)
            assert offset + length <= content.size, f"content {content_id} ends at {content.size}"
            if content.place != PLACE_NONE:
                return await self._read_here(content, offset, length)
            partial = await self._use(content)
            if partial is None:
                continue
            try:
                flights = self._start(partial, offset, length)
                for flight in flights:
                    await flight.done.wait()
                    if flight.error is not None:
                        raise flight.error
                if any(flight.data is not None for flight in flights):
                    return await self._assemble(partial, flights, offset, length)
                return await self._read_file(partial, offset, length)
            finally:
                self._release(partial)

    async def _read_here(self, content: Content, offset: int, length: int) -> bytes:
        """The content came here completely since the caller looked."""
        if content.place == PLACE_INLINE:
            await trio.lowlevel.checkpoint()
            return self._namespace.contents.data(content)[offset : offset + length]
        fd = await self._staging.open(content.id)
        try:
            data = await self._disk.pread(fd, offset, length)
        finally:
            with trio.CancelScope(shield=True):
                await self._disk.close(fd)
        if len(data) != length:
            raise IntegrityError(f"the staging file of content {content.id} is shorter than its content")
        return data

    async def _read_file(self, partial: Partial, offset: int, length: int) -> bytes:
        fd = partial.fd
        assert fd is not None, "the file stays open while someone uses it"
        ready = self._disk.try_pread(fd, offset, length)
        if ready is not None:
            await trio.lowlevel.checkpoint()
            return ready
        data = await self._disk.pread(fd, offset, length)
        if len(data) != length:
            raise IntegrityError(f"the cache file of content {partial.content} is shorter than its content")
        return data

    async def _assemble(self, partial: Partial, flights: list[Flight], offset: int, length: int) -> bytes:
        """Bytes of which some could not be written to the file: those are in the flights that brought them."""
        pieces: list[bytes] = []
        end = offset + length
        while offset < end:
            block = offset // BLOCK_BYTES
            stop = min(end, (block + 1) * BLOCK_BYTES)
            data = next((f.data for f in flights if f.data is not None and f.first <= block < f.first + f.count), None)
            if data is None:
                pieces.append(await self._read_file(partial, offset, stop - offset))
            else:
                start = next(f.first for f in flights if f.data is data) * BLOCK_BYTES
                pieces.append(bytes(data[offset - start : stop - start]))
            offset = stop
        return b"".join(pieces)

    async def _use(self, content: Content) -> Partial | None:
        """The content's partial state, its file open if that can be; counts a user. ``None``: look again."""
        partial = self._partials.get(content.id)
        if partial is None:
            partial = self._partials[content.id] = Partial(content.id, content.size)
            partial.users += 1
            try:
                await self._make_file(partial)
                await self._close_idle()
            except BaseException:
                if self._partials.get(content.id) is partial:
                    del self._partials[content.id]
                partial.dropped = True
                self._release(partial)
                raise
            finally:
                partial.ready.set()
        else:
            partial.users += 1
            try:
                await partial.ready.wait()
            except BaseException:
                self._release(partial)
                raise
        if partial.dropped:
            self._release(partial)
            return None
        return partial

    def _release(self, partial: Partial) -> None:
        partial.users -= 1
        self._let_go(partial)

    def _let_go(self, partial: Partial) -> None:
        """Close the file of a dropped partial state once nobody uses it."""
        settling = partial.settling is not None and not partial.settling.is_set()
        if partial.dropped and not partial.users and not partial.flights and not settling and partial.fd is not None:
            trio.lowlevel.spawn_system_task(self._close, partial)

    async def _make_file(self, partial: Partial) -> None:
        """Make the sparse file. One that is there is of an earlier life, when it was not complete."""
        await self.guard.wait(partial.content)
        try:
            await self._staging.remove(partial.content)
            partial.fd = await self._staging.create(partial.content)
            await self._disk.truncate(partial.fd, partial.size)
        except OSError as error:
            log.warning("content %s cannot be cached: %s", partial.content, error)
            partial.failure = error
        if partial.dropped:
            await self._staging.remove(partial.content)

    async def _close_idle(self) -> None:
        """Drop the blocks of contents that were not read for long, when too many files are open."""
        if len(self._partials) <= _OPEN_MAX:
            return
        for content, partial in list(self._partials.items())[: len(self._partials) - _OPEN_MAX]:
            if not self.is_fetching(content):
                await self.drop(partial.content)

    def _start(self, partial: Partial, offset: int, length: int) -> list[Flight]:
        """Begin what a read needs, and what it lets expect; the flights that it must wait for."""
        limits = self._limits
        self._touch(partial)
        partial.streams, ahead = observe(
            partial.streams,
            offset,
            length,
            first_bytes=limits.group_blocks * BLOCK_BYTES,
            most_bytes=limits.window_bytes,
        )
        needed = partial.blocks(offset, offset + length)
        # Ahead of need only whole groups are worth a request.
        group = limits.group_blocks * BLOCK_BYTES
        end = offset + length + ahead
        reach = end if end >= partial.size else max(offset + length, end // group * group)
        wanted = partial.wanted(partial.blocks(offset, reach if ahead else offset + length))
        for first, count in runs(wanted, limits.group_blocks):
            self._launch(partial, first, count, demanded=first < needed.stop)
        found: list[Flight] = []
        for block in needed:
            flight = partial.flights.get(block)
            if flight is not None and flight not in found:
                found.append(flight)
        return found

    def _touch(self, partial: Partial) -> None:
        self._partials[partial.content] = self._partials.pop(partial.content, partial)

    def _launch(self, partial: Partial, first: int, count: int, *, demanded: bool) -> Flight:
        assert self._nursery is not None, "run() is running"
        flight = Flight(first, count)
        for block in range(first, first + count):
            partial.flights[block] = flight
        self._nursery.start_soon(self._fly, partial, flight, self._demand if demanded else self._ahead)
        return flight

    # --- fetching

    async def _fly(self, partial: Partial, flight: Flight, limiter: trio.CapacityLimiter) -> None:
        """Fetch the blocks of a flight into the file (or, if they cannot be written, into the flight)."""
        flight.error = IntegrityError(f"the fetch of content {partial.content} was cancelled")
        try:
            async with limiter:
                size = min(flight.count * BLOCK_BYTES, partial.size - flight.first * BLOCK_BYTES)
                buffer = memoryview(bytearray(size))
                digests = await self._source.get(partial, flight, buffer)
                flight.error = None
                await self._keep(partial, flight, buffer, digests)
        except (CkptfsError, OSError) as error:
            flight.error = error
        finally:
            for block in range(flight.first, flight.first + flight.count):
                del partial.flights[block]
            flight.done.set()
        if not partial.missing_count and not partial.flights and partial.failure is None:
            await self._try_settle(partial)
        self._let_go(partial)

    async def _keep(self, partial: Partial, flight: Flight, buffer: memoryview, digests: bytes) -> None:
        if partial.failure is None and partial.fd is not None and not partial.dropped:
            try:
                await self._disk.pwrite(partial.fd, flight.first * BLOCK_BYTES, buffer)
            except OSError as error:
                log.warning("content %s cannot be cached: %s", partial.content, error)
                flight.unkept = error
            else:
                partial.arrived(flight, digests)
                self.grown(partial.content, partial.present_bytes)
                return
        flight.unkept = flight.unkept or partial.failure
        flight.data = buffer

    # --- becoming clean

    async def materialize(self, content_id: ContentId) -> None:
        """Bring the whole content into staging; its place is the staging file then.

        Raises:
            IntegrityError, StoreError: as :meth:`read`.
            OSError: the disk has no room for it.
        """
        await trio.lowlevel.checkpoint()
        while True:
            content = self._source.content(content_id)
            if content.place != PLACE_NONE:
                return
            partial = await self._use(content)
            if partial is None:
                continue
            try:
                await self._bring_all(partial)
                await self._settle(partial)
            finally:
                self._release(partial)

    async def _bring_all(self, partial: Partial) -> None:
        """Fetch every missing block, some requests at a time."""
        if partial.failure is not None:
            raise partial.failure
        step = self._limits.group_blocks * self._limits.demand_count
        for start in range(0, partial.block_count, step):
            blocks = range(start, min(start + step, partial.block_count))
            for first, count in runs(partial.wanted(blocks), self._limits.group_blocks):
                self._launch(partial, first, count, demanded=True)
            for block in blocks:
                flight = partial.flights.get(block)
                if flight is None:
                    continue
                await flight.done.wait()
                if flight.error is not None:
                    raise flight.error
                if flight.unkept is not None:
                    raise flight.unkept

    async def _try_settle(self, partial: Partial) -> None:
        try:
            await self._settle(partial)
        except (CkptfsError, OSError) as error:
            log.warning("content %s stays uncached: %s", partial.content, error)
            await self.drop(partial.content)

    async def _settle(self, partial: Partial) -> None:
        """Make a content of which every block is here a clean one. Its bytes are on the disk before the row says so."""
        if partial.settling is not None:
            await partial.settling.wait()
            return
        if partial.dropped or partial.missing_count or partial.fd is None:
            return
        partial.settling = trio.Event()
        try:
            async with self._settle_limiter:
                await self._disk.fsync(partial.fd)
                await self._staging.sync_entry(partial.content)
            content = self._namespace.contents.get(partial.content)
            if content is not None and self._is_current(partial) and content.place == PLACE_NONE:
                self._become_clean(content, partial)
                partial.dropped = True
                self._partials.pop(partial.content, None)
        finally:
            partial.settling.set()
            if not partial.dropped:
                partial.settling = None
        self._let_go(partial)

    def _is_current(self, partial: Partial) -> bool:
        return self._partials.get(partial.content) is partial

    def _become_clean(self, content: Content, partial: Partial) -> None:
        content.place = PLACE_FILE
        if not content.digests:
            content.digests, content.block_bytes = bytes(partial.digests), BLOCK_BYTES
        if content.state is ContentState.RECLAIMED:
            self._namespace.contents.move(content, ContentState.PUBLISHED)
        else:
            self._namespace.state.contents.mark(content.id)
            self._namespace.state.touch()

    # --- letting go

    def _on_drop(self, content: Content) -> None:
        partial = self._partials.pop(content.id, None)
        if partial is None:
            return
        partial.dropped = True
        self.grown(content.id, 0)
        self._let_go(partial)

    async def drop(self, content_id: ContentId) -> bool:
        """Let the blocks of an incomplete content go; whether that was possible: not while someone reads it."""
        partial = self._partials.get(content_id)
        if partial is None or self.is_fetching(content_id):
            await trio.lowlevel.checkpoint()
            return False
        del self._partials[content_id]
        partial.dropped = True
        self.grown(content_id, 0)
        async with self.guard.removing([content_id]):
            with trio.CancelScope(shield=True):
                await self._close(partial)
                await self._staging.remove(content_id)
        return True

    async def _close(self, partial: Partial) -> None:
        fd, partial.fd = partial.fd, None
        if fd is not None:
            with trio.CancelScope(shield=True):
                await self._disk.close(fd)
