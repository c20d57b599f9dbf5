"""Clocks and gauges: one measured call, and the memory of a daemon while something goes on."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, ParamSpec, Self

if TYPE_CHECKING:
    from collections.abc import Callable

SAMPLE_S = 0.05


Arguments = ParamSpec("Arguments")


def seconds(work: Callable[Arguments, object], *args: Arguments.args, **kwargs: Arguments.kwargs) -> float:
    """How long one call takes, in seconds."""
    begin = time.perf_counter()
    work(*args, **kwargs)
    return time.perf_counter() - begin


@dataclass(slots=True)
class Series:
    """The values of one measurement over its repetitions.

    Attributes:
        unit: of the values, such as ``MiB/s``.
        better: ``more`` or ``less``: which end is the good one.
        values: one for each repetition, in the order of measuring.
    """

    unit: str
    better: str = "more"
    values: list[float] = field(default_factory=list)

    def median(self) -> float:
        """The middle value."""
        return median(self.values)


class MemoryWatch:
    """The highest memory of a set of processes, sampled on a thread for as long as the context is open.

    Attributes:
        anonymous_mib: highest sum of ``RssAnon``: what only the daemons' own data takes.
        resident_mib: highest sum of ``VmRSS``: with mapped files, whose pages the kernel can take back at any time.
    """

    def __init__(self, pids: Callable[[], list[int]]) -> None:
        self._pids = pids
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self.anonymous_mib = 0.0
        self.resident_mib = 0.0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._end.wait(SAMPLE_S):
            both = [_memory_kib(pid) for pid in self._pids()]
            self.anonymous_mib = max(self.anonymous_mib, sum(anonymous for anonymous, _ in both) / 1024)
            self.resident_mib = max(self.resident_mib, sum(resident for _, resident in both) / 1024)


def _memory_kib(pid: int) -> tuple[int, int]:
    """``RssAnon`` and ``VmRSS`` of a process in KiB; nothing for one that has ended."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return 0, 0
    lines = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return tuple(int(lines.get(name, "0 kB").split()[0]) for name in ("RssAnon", "VmRSS"))  # type: ignore[return-value]
