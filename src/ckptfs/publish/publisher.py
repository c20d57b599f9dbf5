"""The loop of publication.

It takes obliged keys, many at a time, and works on each until the bucket has what the namespace wants.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Protocol

import trio

from ckptfs.errors import (
    BucketNotFoundError,
    CkptfsError,
    PosixError,
    SpaceError,
    StoreDeniedError,
    StoreRejectedError,
    StoreUnavailableError,
)
from ckptfs.objectstore.base import Upload
from ckptfs.publish.hand import Hand
from ckptfs.publish.hooks import Hooks
from ckptfs.publish.plan import Nothing, Wait, decide
from ckptfs.publish.queue import WorkQueue, back_off_s
from ckptfs.publish.trees import expand
from ckptfs.types import RESERVED_PREFIX, Key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ckptfs.env import Env
    from ckptfs.namespace import Namespace
    from ckptfs.objectstore.base import ObjectInfo, ObjectStore
    from ckptfs.publish.upload import PublishLimits
    from ckptfs.staging import Staging
    from ckptfs.types import ContentId, Ino

STEPS_MAX = 8
"""Steps that one attempt takes before the key goes behind the others."""

PARKS_MAX = 20
"""How often a key may be parked before it waits for a time instead: a ring of waits must not spin."""

STUCK_FAILURES = 6
"""Failures in a row after which other keys no longer wait for one that should go before them."""

LOOK_BELOW_S = 0.02
"""How often it is looked for obligations below a prefix that is waited for: it is a query each time."""

REFILL_COUNT = 5_000
FAILING_MAX = 50_000

_CURABLE_BY_OTHERS = (StoreDeniedError, StoreRejectedError, BucketNotFoundError)

log = logging.getLogger(__name__)


class Reader(Protocol):
    """Brings contents that only the bucket has."""

    async def materialize(self, content: ContentId) -> None:
        """Bring the whole content to this node."""


class Publisher:
    """Makes the bucket what the namespace wants it to be.

    Args:
        env: clock, threads, jitter.
        store: the bucket.
        namespace: both sides.
        staging: bytes of contents.
        reader: brings contents that only the bucket has.
        limits: bounds.
        adopt: shows an object as a file under a name that is free now, and notes the object as known.
        in_use: whether a handle reads a content.
    """

    def __init__(
        self,
        env: Env,
        store: ObjectStore,
        namespace: Namespace,
        staging: Staging,
        reader: Reader,
        limits: PublishLimits,
        *,
        adopt: Callable[[Ino, bytes, ObjectInfo], object],
        in_use: Callable[[ContentId], bool] = lambda _content: False,
    ) -> None:
        self._env = env
        self._waiter_count = 0
        self._namespace = namespace
        self._bucket = namespace.bucket
        self._limits = limits
        self._queue = WorkQueue()
        self._stuck: set[Key] = set()
        self.hooks = Hooks(reader.materialize, adopt, in_use)
        """``name_changed`` and ``is_busy`` may be set."""
        self._hand = Hand(env, store, namespace, staging, limits, self.hooks, self._queue.waits, self._stuck)
        self._wake = trio.Event()
        self._progress = trio.Event()
        self._slots = trio.CapacityLimiter(limits.worker_count)
        self._refill_at: tuple[int, str] | None = None
        self._refill_after_s = 0.0
        self._failing: dict[Key, str] = {}

    # --- what others ask

    @property
    def conflicts(self) -> list[dict[str, str | int]]:
        """Objects that changed behind the mount's back while it was about to change them; the newest, oldest first."""
        return [
            {"key": conflict.key, "kept_as": conflict.kept_as, "lsn": conflict.lsn}
            for conflict in self._hand.conflicts.found
        ]

    def pending(self) -> dict[str, int]:
        """What is not in the bucket yet.

        ``objects``: keys (a renamed tree counts once until it is expanded); ``bytes``: those that exist nowhere else;
        ``failing``: keys whose last attempt failed.
        """
        return {
            "objects": self._bucket.obligation_count + self._bucket.tree_move_count,
            "bytes": self._namespace.contents.unpublished_bytes(),
            "failing": len(self._failing),
        }

    def errors(self, limit: int = 100) -> list[tuple[str, str]]:
        """Keys whose last attempt failed, and why."""
        return list(islice(self._failing.items(), limit))

    def lag_s(self) -> float:
        """How long ago the oldest change was made that is not in the bucket, as saved; seconds."""
        oldest_ns = self._bucket.oldest_ns()
        return 0.0 if oldest_ns is None else max(0.0, (self._env.wall_ns() - oldest_ns) / 1e9)

    async def drained(self) -> None:
        """Return when no key may differ any more, and the namespace on disk knows it."""
        await self.wait([Key("")])

    async def wait(self, keys: Iterable[Key]) -> None:
        """Return when the bucket had what the namespace wants under each key, or below it if it ends in a slash.

        Keys that change again meanwhile are waited for again only while their turn has not come. The empty key is all.
        """
        await trio.lowlevel.checkpoint()
        self._waiter_count += 1
        try:
            await self._wait(keys)
        finally:
            self._waiter_count -= 1

    async def _wait(self, keys: Iterable[Key]) -> None:
        for key in keys:
            while True:
                while self._is_pending(key):
                    await self._progress.wait()
                    if key.endswith("/"):
                        await self._env.sleep(LOOK_BELOW_S)
                # Below a prefix only what is saved is looked at in full.
                await self._namespace.state.flush()
                if not self._is_pending(key):
                    break

    async def published_below(self, prefix: str) -> None:
        """:meth:`wait` for one key or prefix."""
        await self.wait([Key(prefix)])

    def _is_pending(self, key: Key) -> bool:
        if key in {"", "/"}:
            return bool(self._bucket.obligation_count or self._bucket.tree_move_count)
        if key.endswith("/"):
            return self._bucket.obliged_below(key)
        return self._bucket.obligation(key) is not None or self._bucket.covering_move(key)

    # --- the loops

    async def run(self) -> None:
        """Publish until cancelled. What is under way then is aborted; what the next start cannot know it looks up."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._listen)
            nursery.start_soon(self._expand_trees)
            nursery.start_soon(self._abort_left_over)
            while True:
                await self._take_fresh()
                key = self._queue.take(self._env.monotonic_s())
                if key is None:
                    await self._idle()
                    continue
                await self._slots.acquire_on_behalf_of(key)
                nursery.start_soon(self._attempt, key)
                await self._give_way()

    async def _give_way(self) -> None:
        """Begin objects slowly while callers are at work: the checkpoint comes first, unless somebody waits for us."""
        if not self.hooks.is_busy() or self._waiter_count:
            return
        is_late = self.lag_s() > self._limits.late_s
        await self._env.sleep(self._limits.give_way_late_s if is_late else self._limits.give_way_s)

    async def _listen(self) -> None:
        while True:
            await self._bucket.news()
            self._wake.set()
            self._announce()

    def _announce(self) -> None:
        event, self._progress = self._progress, trio.Event()
        event.set()

    async def _idle(self) -> None:
        """Wait until something may be ready."""
        due_s = self._queue.due_s()
        now_s = self._env.monotonic_s()
        if self._bucket.overflowed and not self._queue.is_full:
            due_s = self._refill_after_s if due_s is None else min(due_s, self._refill_after_s)
        with trio.move_on_after(float("inf") if due_s is None else max(0.0, due_s - now_s)):
            await self._wake.wait()
        self._wake = trio.Event()

    async def _take_fresh(self) -> None:
        """Move obliged keys into the queue, from the file when memory could not hold them all."""
        fresh = self._bucket.fresh
        while fresh and not self._queue.is_full:
            key, _ = fresh.popitem(last=False)
            self._queue.add(key)
        if fresh or self._queue.is_full:
            return
        if self._refill_at is None:
            if not self._bucket.overflowed or self._env.monotonic_s() < self._refill_after_s:
                return
            self._bucket.overflowed = False
        await self._namespace.state.flush()
        self._refill_at = self._bucket.refill(self._refill_at or (-1, ""), REFILL_COUNT)
        if self._refill_at is None:
            self._refill_after_s = self._env.monotonic_s() + self._limits.retry_most_s
        self._wake.set()

    async def _attempt(self, key: Key) -> None:
        """Work on one key until it is as wanted, or until something is in the way."""
        try:
            await self._steps(key)
        except (CkptfsError, PosixError, OSError) as error:
            self._failed(key, error)
        except Exception as error:
            log.exception("unexpected error while %r was being published", key)
            self._failed(key, error)
        finally:
            self._slots.release_on_behalf_of(key)
            self._wake.set()
            self._announce()

    async def _steps(self, key: Key) -> None:
        await trio.lowlevel.checkpoint()
        if key.startswith(RESERVED_PREFIX):
            raise StoreRejectedError(f"{key!r}: names below {RESERVED_PREFIX} are reserved")
        obligation = self._bucket.obligation(key)
        if obligation is not None:
            # The bucket must not show what a power cut would undo here. But a full disk is no reason to stop: to
            # publish is what makes room.
            with suppress(SpaceError):
                await self._namespace.state.sync(obligation.lsn)
        for count in range(STEPS_MAX):
            if self._bucket.obligation(key) is None:
                self._succeeded(key)
                return
            step = decide(self._hand.view.scene(key))
            match step:
                case Nothing():
                    self._bucket.fulfil(key, self._namespace.state.lsn)
                    self._succeeded(key)
                    return
                case Wait():
                    self._park(key, step, changed=count > 0)
                    return
                case _:
                    await self._hand.take(key, step)
        self._queue.again(key)

    def _succeeded(self, key: Key) -> None:
        self._failing.pop(key, None)
        self._stuck.discard(key)
        self._queue.done(key)

    def _park(self, key: Key, step: Wait, *, changed: bool) -> None:
        if self._queue.parks(key) >= PARKS_MAX:
            self._queue.late(key, self._env.monotonic_s() + self._limits.retry_first_s)
            return
        if self._bucket.obligation(step.on) is None:
            # A record of its own, so that the obligation is on the disk before anything is done about it.
            self._bucket.oblige(step.on, self._namespace.state.record("oblige", key=step.on))
        self._bucket.fresh.pop(step.on, None)
        self._queue.park(key, step.on, changed=changed)

    def _failed(self, key: Key, error: Exception) -> None:
        """Note the failure and when to look again. Each new error of a key is logged once."""
        text = str(error) or type(error).__name__
        if self._failing.get(key) != text and len(self._failing) < FAILING_MAX:
            log.warning("%r cannot be published yet: %s", key, text)
            self._failing[key] = text
        self._bucket.fail(key, text)
        lasting = isinstance(error, _CURABLE_BY_OTHERS)
        failures = self._queue.failures(key)
        if (lasting or failures >= STUCK_FAILURES) and len(self._stuck) < FAILING_MAX:
            self._stuck.add(key)
        if lasting and self._queue.is_full:
            # Nothing but the file remembers it now: the next round of refills brings it again.
            self._queue.done(key)
            self._bucket.overflowed = True
            return
        self._queue.late(key, self._env.monotonic_s() + self._wait_s(error, failures, lasting=lasting))

    def _wait_s(self, error: Exception, failures: int, *, lasting: bool) -> float:
        limits, jitter = self._limits, self._env.random()
        if lasting:
            return back_off_s(0, jitter, first_s=limits.permanent_s, most_s=limits.permanent_s)
        wait_s = back_off_s(failures, jitter, first_s=limits.retry_first_s, most_s=limits.retry_most_s)
        if isinstance(error, StoreUnavailableError) and error.retry_after_s is not None:
            wait_s = max(wait_s, min(error.retry_after_s, limits.permanent_s))
        return wait_s

    async def _expand_trees(self) -> None:
        while True:
            move = self._bucket.next_tree_move()
            if move is None:
                await self._progress.wait()
                continue
            await expand(self._namespace, move, chunk=self._limits.walk_count)

    async def _abort_left_over(self) -> None:
        """Abort the uploads that an earlier life left, and those whose abort failed in this one."""
        uploader = self._hand.uploader
        uploader.left_over.extend(Upload(row.key, row.upload_id) for row in self._bucket.uploads())
        while True:
            await uploader.clean_up()
            await self._env.sleep(self._limits.retry_most_s)
