"""Which key is looked at next: a value without I/O or clock."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ckptfs.types import Key

LATE_MAX = 10_000
"""Keys that wait for a time or for another key before fresh ones are no longer taken."""


class WorkQueue:
    """Keys that are ready, busy, late (wait for a time) or parked (wait for an attempt on another key)."""

    def __init__(self) -> None:
        self._first: OrderedDict[Key, None] = OrderedDict()
        self._ready: OrderedDict[Key, None] = OrderedDict()
        self._busy: set[Key] = set()
        self._late: dict[Key, float] = {}
        self._heap: list[tuple[float, Key]] = []
        self._failures: dict[Key, int] = {}
        self._parks: dict[Key, int] = {}
        self._waiters: dict[Key, dict[Key, None]] = {}
        self.waits: dict[Key, Key] = {}
        """Which parked key waits for which."""

    @property
    def is_full(self) -> bool:
        """Whether so many keys wait that no fresh one should be added."""
        return len(self._late) + len(self.waits) >= LATE_MAX or len(self._ready) >= LATE_MAX

    @property
    def busy_count(self) -> int:
        """Keys under way."""
        return len(self._busy)

    def add(self, key: Key, *, first: bool = False) -> None:
        """A key may need work. One under way looks again by itself, a late one keeps its time, a parked one is freed.

        Args:
            key: the key.
            first: before all others: something waits for it.
        """
        if key in self._busy or key in self._late:
            return
        self._unpark(key)
        if first:
            self._ready.pop(key, None)
            self._first[key] = None
        elif key not in self._first:
            self._ready[key] = None

    def take(self, now_s: float) -> Key | None:
        """The next key, busy from now on; ``None`` when none is ready."""
        while self._heap and self._heap[0][0] <= now_s:
            due_s, key = heapq.heappop(self._heap)
            if self._late.get(key) == due_s:
                del self._late[key]
                self._ready[key] = None
        ready = self._first or self._ready
        if not ready:
            return None
        key, _ = ready.popitem(last=False)
        self._busy.add(key)
        return key

    def due_s(self) -> float | None:
        """When the next late key is ready."""
        while self._heap and self._late.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def failures(self, key: Key) -> int:
        """How often in a row attempts on a key failed."""
        return self._failures.get(key, 0)

    def done(self, key: Key) -> None:
        """The attempt on a key ended well, or somebody else remembers the key."""
        self._failures.pop(key, None)
        self._parks.pop(key, None)
        self._end(key)

    def parks(self, key: Key) -> int:
        """How often a key was parked since it was last done."""
        return self._parks.get(key, 0)

    def again(self, key: Key) -> None:
        """The attempt on a key took as many steps as one should: look again behind the others."""
        self._end(key)
        self.add(key)

    def late(self, key: Key, until_s: float) -> None:
        """The attempt on a key failed: look again at ``until_s``."""
        self._failures[key] = self._failures.get(key, 0) + 1
        self._late[key] = until_s
        heapq.heappush(self._heap, (until_s, key))
        self._end(key)

    def park(self, key: Key, on: Key, *, changed: bool) -> None:
        """The attempt on ``key`` must come after one on another key.

        Who waits for ``key`` waits on, unless the attempt has ``changed`` something that may let it go.
        """
        assert key != on, f"{key} cannot wait for itself"
        if changed:
            self._end(key)
        else:
            self._busy.discard(key)
        self.waits[key] = on
        self._parks[key] = self._parks.get(key, 0) + 1
        self._waiters.setdefault(on, {})[key] = None
        if on not in self.waits:
            self.add(on, first=True)

    def _end(self, key: Key) -> None:
        """An attempt on ``key`` is over, whatever came of it: who waited for it looks again."""
        self._busy.discard(key)
        for waiter in self._waiters.pop(key, {}):
            del self.waits[waiter]
            self._ready[waiter] = None

    def _unpark(self, key: Key) -> None:
        on = self.waits.pop(key, None)
        if on is not None:
            self._waiters[on].pop(key, None)
            if not self._waiters[on]:
                del self._waiters[on]


def back_off_s(failures: int, jitter: float, *, first_s: float, most_s: float) -> float:
    """How long to wait after failures in a row: doubling from ``first_s`` to ``most_s``, less up to half at random.

    Args:
        failures: how many there were before this one.
        jitter: in [0, 1).
        first_s: the shortest.
        most_s: the longest.
    """
    whole_s = min(most_s, first_s * 2.0 ** min(failures, 30))
    return float(whole_s * (1 - jitter / 2))
