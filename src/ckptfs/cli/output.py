"""What commands print: sizes and durations that people read, error lines, progress on a terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final, Self, TextIO

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ckptfs.env import Env
    from ckptfs.errors import CkptfsError

QUIET_S: Final = 1.0
"""A wait that ends sooner shows no progress."""

REPEAT_S: Final = 30.0
"""Between two progress lines where they cannot be overwritten (no terminal)."""


def print_error(error: CkptfsError) -> None:
    """One line: what happened, to which thing, what to do."""
    print_note(sentence(error))


def sentence(error: CkptfsError) -> str:
    """An error with its hint, as one line of text."""
    text = str(error).rstrip(".")
    if error.hint:
        text += f"; {error.hint}" if error.hint[0].islower() else f". {error.hint}"
    return " ".join(text.split("\n"))


def print_note(text: str) -> None:
    """One line beside the answer, on standard error."""
    print(f"ckptfs: {text}", file=sys.stderr)


def size(byte_count: float) -> str:
    """``1.5 GiB``."""
    value, units = float(byte_count), ["KiB", "MiB", "GiB", "TiB", "PiB"]
    if abs(value) < 1024:
        return f"{byte_count:g} B"
    unit = ""
    while abs(value) >= 1024 and units:
        value, unit = value / 1024, units.pop(0)
    return f"{value:.1f} {unit}"


def duration(seconds: float) -> str:
    """``3.2 s``, ``4 min 5 s``, ``2 h 3 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def count(number: int, noun: str) -> str:
    """``1 object``, ``2 objects``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def pending_text(pending: dict[str, int]) -> str:
    """What is not yet published, in words: ``3 objects (1.5 GiB, 1 failing)``."""
    failing = f", {pending['failing']} failing" if pending.get("failing") else ""
    return f"{count(pending['objects'], 'object')} ({size(pending['bytes'])}{failing})"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns, left-aligned, two blanks between them."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


class Progress:
    """Says on standard error what a command waits for: one line that changes on a terminal, a few lines elsewhere.

    Args:
        goal: what is waited for, as in ``waiting until GOAL``.
        env: clock.
        stream: where to.
    """

    def __init__(self, goal: str, env: Env, stream: TextIO | None = None) -> None:
        self._goal = goal
        self._env = env
        self._stream = sys.stderr if stream is None else stream
        self._began_s = env.monotonic_s()
        self._said_s: float | None = None
        self._width = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()
            self._width = 0

    def update(self, pending: dict[str, int]) -> None:
        """Show how much is left."""
        now_s = self._env.monotonic_s()
        waited_s = now_s - self._began_s
        if waited_s < QUIET_S:
            return
        text = f"ckptfs: waiting until {self._goal}: {pending_text(pending)} left, {duration(waited_s)} so far"
        if self._stream.isatty():
            self._stream.write("\r" + text.ljust(self._width))
            self._width = len(text)
        elif self._said_s is None or now_s - self._said_s >= REPEAT_S:
            self._said_s = now_s
            self._stream.write(text + "\n")
        self._stream.flush()
