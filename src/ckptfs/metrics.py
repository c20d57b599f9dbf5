"""Counts and gauges of one process, by name, units last (``published_bytes``, ``upload_retries_total``).

Plain and without locks: each call is a few bytecodes on one number. Counts are exact from one thread (the event loop);
from several threads at once a count may lose an increment, so threads hand theirs to the loop or own a counter each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Counter:
    """A number that only grows."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def add(self, amount: int = 1) -> None:
        """Count ``amount`` more, not negative."""
        assert amount >= 0, f"a counter never goes back, asked for {amount}"
        self.value += amount


class Gauge:
    """A number that goes up and down; at rest every gauge of work in progress is zero."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: int | float = 0

    def set(self, value: float) -> None:
        """Make it ``value``."""
        self.value = value

    def add(self, amount: float = 1) -> None:
        """Move it by ``amount``, which may be negative."""
        self.value += amount


class Metrics:
    """The counters and gauges of one daemon; asking for a name again gives the same one."""

    def __init__(self) -> None:
        self._all: dict[str, Counter | Gauge] = {}
        self._read: dict[str, Callable[[], int | float]] = {}

    def counter(self, name: str) -> Counter:
        """The counter ``name``."""
        found = self._all.setdefault(name, Counter())
        assert isinstance(found, Counter), f"{name} is a gauge"
        return found

    def gauge(self, name: str) -> Gauge:
        """The gauge ``name``."""
        found = self._all.setdefault(name, Gauge())
        assert isinstance(found, Gauge), f"{name} is a counter"
        return found

    def computed(self, name: str, read: Callable[[], int | float]) -> None:
        """A gauge whose value is asked for at each snapshot; ``read`` never blocks."""
        assert name not in self._all, f"{name} is there already"
        assert name not in self._read, f"{name} is there already"
        self._read[name] = read

    def snapshot(self) -> dict[str, int | float]:
        """Every name with its value now, sorted by name."""
        values = {name: item.value for name, item in list(self._all.items())}
        values.update({name: read() for name, read in list(self._read.items())})
        return dict(sorted(values.items()))
