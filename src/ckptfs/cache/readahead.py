"""How far to fetch ahead of a reader: a pure decision over what was read of a content before.

A content has several readers at once (a zip's directory at its end, tensors from the front), so several streams are
followed. Only a stream that goes on where it was is fetched ahead of: small reads here and there neither cost more than
their blocks nor spoil a stream.
"""

from __future__ import annotations

from dataclasses import dataclass

STREAMS_MAX = 8
SLACK_BYTES = 1 << 20
"""How far from its expected place a read may be: the kernel's own readahead comes a little out of order."""


@dataclass(frozen=True, slots=True)
class Stream:
    """A reader that goes on: where its next read should be, and how far ahead of it is fetched, both in bytes."""

    next_offset: int
    window_bytes: int


def observe(
    streams: tuple[Stream, ...], offset: int, length: int, *, first_bytes: int, most_bytes: int
) -> tuple[tuple[Stream, ...], int]:
    """What a read means: the streams after it, the one it belongs to last, and how many bytes behind it to fetch.

    Args:
        streams: before it; the one that was read last is last.
        offset: of the read.
        length: of the read.
        first_bytes: window of a stream that was just seen to go on, or that begins at the beginning; then it doubles.
        most_bytes: the largest window.
    """
    end = offset + length
    for index in range(len(streams) - 1, -1, -1):
        stream = streams[index]
        if abs(offset - stream.next_offset) > SLACK_BYTES:
            continue
        grown = min(most_bytes, stream.window_bytes * 2) if stream.window_bytes else first_bytes
        window = grown if end > stream.next_offset else stream.window_bytes
        others = streams[:index] + streams[index + 1 :]
        return (*others, Stream(max(end, stream.next_offset), window)), window
    window = first_bytes if offset == 0 else 0
    return (*streams[-(STREAMS_MAX - 1) :], Stream(end, window)), window


def runs(missing: list[int], most: int) -> list[tuple[int, int]]:
    """Block numbers, ascending, as runs (first, count) of neighbours, none longer than ``most``."""
    found: list[tuple[int, int]] = []
    for block in missing:
        if found and found[-1][0] + found[-1][1] == block and found[-1][1] < most:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((block, 1))
    return found
