"""How far ahead is fetched, and what is evicted: pure decisions."""

from __future__ import annotations

import pytest

from ckptfs.cache.evict import BATCH_COUNT, SCAN_COUNT, choose
from ckptfs.cache.readahead import STREAMS_MAX, Stream, observe, runs
from ckptfs.types import ContentId

KIB, MIB = 1 << 10, 1 << 20
FIRST, MOST = 4 * MIB, 32 * MIB


def read_all(reads: list[tuple[int, int]]) -> list[int]:
    streams: tuple[Stream, ...] = ()
    windows = []
    for offset, length in reads:
        streams, ahead = observe(streams, offset, length, first_bytes=FIRST, most_bytes=MOST)
        windows.append(ahead)
        assert len(streams) <= STREAMS_MAX
    return windows


def test_a_stream_from_the_beginning_grows_its_window() -> None:
    windows = read_all([(n * 128 * KIB, 128 * KIB) for n in range(6)])
    assert windows == [FIRST, 2 * FIRST, 4 * FIRST, MOST, MOST, MOST]


def test_random_reads_are_not_fetched_ahead_of() -> None:
    assert read_all([(n * 37 * MIB + 5 * MIB, 4 * KIB) for n in range(50)]) == [0] * 50


def test_small_reads_elsewhere_do_not_stop_a_stream() -> None:
    """A load by DCP: a zip directory near the end is read in small pieces between large sequential reads."""
    reads = []
    for n in range(10):
        reads += [(n * 4 * MIB, 4 * MIB), (900 * MIB - n * 3 * MIB, 22)]
    windows = read_all(reads)
    assert windows[0::2][-1] == MOST
    assert set(windows[1::2]) == {0}


def test_reads_that_the_kernel_sends_out_of_order_are_one_stream() -> None:
    order = [0, 2, 1, 3, 5, 4, 6, 7]
    windows = read_all([(n * 128 * KIB, 128 * KIB) for n in order])
    assert windows[-1] == MOST
    assert 0 not in windows


def test_several_streams_at_once() -> None:
    reads = [(stream * 100 * MIB + n * MIB, MIB) for n in range(8) for stream in range(4)]
    assert read_all(reads)[-4:] == [MOST] * 4


@pytest.mark.parametrize(
    ("missing", "expected"),
    [
        ([], []),
        ([3], [(3, 1)]),
        ([1, 2, 3, 4, 5], [(1, 4), (5, 1)]),
        ([1, 3, 4], [(1, 1), (3, 2)]),
    ],
)
def test_runs(missing: list[int], expected: list[tuple[int, int]]) -> None:
    assert runs(missing, 4) == expected


def ids(*numbers: int) -> list[ContentId]:
    return [ContentId(number) for number in numbers]


def test_the_oldest_go_until_enough_is_free() -> None:
    entries = [(ContentId(n), 10) for n in range(10)]
    choice = choose(entries, 25, lambda _content: False)
    assert choice.victims == ids(0, 1, 2)
    assert choice.kept == []


def test_what_is_needed_stays_and_does_not_count() -> None:
    entries = [(ContentId(n), 10) for n in range(10)]
    choice = choose(entries, 25, lambda content: content in {0, 2})
    assert choice.victims == ids(1, 3, 4)
    assert choice.kept == ids(0, 2)


def test_nothing_goes_when_nothing_is_too_much() -> None:
    assert choose([(ContentId(1), 10)], 0, lambda _content: False).victims == []


def test_one_choice_is_bounded() -> None:
    entries = [(ContentId(n), 1) for n in range(100_000)]
    assert len(choose(entries, 10**9, lambda _content: False).victims) == BATCH_COUNT
    assert len(choose(entries, 10**9, lambda _content: True).kept) == SCAN_COUNT
