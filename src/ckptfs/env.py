"""The only home of clock, randomness and threads.

Everything that could make two runs of the same code differ enters through an :class:`Env`, so that the daemon can run
under a simulated one. ruff bans the standard sources elsewhere.
"""

from __future__ import annotations

import os
import random
import threading
import time
from typing import TYPE_CHECKING, Protocol, TypeVar, TypeVarTuple

import trio

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Env(Protocol):
    """Clock, randomness and threads of one daemon."""

    def monotonic_s(self) -> float:
        """Seconds on a clock that never goes back; its origin means nothing."""

    def wall_ns(self) -> int:
        """Nanoseconds since the epoch, for timestamps that users see. Never for measuring an interval."""

    def random(self) -> float:
        """A float in [0, 1), for jitter."""

    def token(self, byte_count: int = 8) -> str:
        """A hexadecimal string nobody else has: ``2 * byte_count`` characters."""

    async def run_blocking(self, fn: Callable[[*Ts], T], *args: *Ts, limiter: trio.CapacityLimiter | None = None) -> T:
        """Run ``fn`` on a thread and return what it returns. Not cancelled half-way: it always ends first."""

    async def sleep(self, seconds: float) -> None:
        """Let ``seconds`` pass."""


class RealEnv:
    """The machine's own clock, randomness and threads."""

    def monotonic_s(self) -> float:
        return time.monotonic()

    def wall_ns(self) -> int:
        return time.time_ns()

    def random(self) -> float:
        return random.random()  # noqa: S311 - jitter, not a secret

    def token(self, byte_count: int = 8) -> str:
        return os.urandom(byte_count).hex()

    async def run_blocking(self, fn: Callable[[*Ts], T], *args: *Ts, limiter: trio.CapacityLimiter | None = None) -> T:
        return await trio.to_thread.run_sync(fn, *args, limiter=limiter)

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)


def start_thread(name: str, target: Callable[[], None]) -> threading.Thread:
    """Start a daemon thread for a loop that owns a blocking resource (the journal's writer)."""
    thread = threading.Thread(target=target, name=name, daemon=True)
    thread.start()
    return thread
