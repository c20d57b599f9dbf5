"""Which workload runs on which target, in what order and from what state. Repetitions go round the targets in turn."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Protocol

import workloads
from measure import MemoryWatch, seconds
from targets import MIB, TargetError, drop_kernel_caches

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from report import Results
    from targets import Target
    from workloads import Scale

SMALL = b"x" * 1024
FLAT_DRAIN_S = 1800.0
"""How long the million objects may take to reach the bucket before the level is measured all the same, seconds."""


class Scenario(Protocol):
    """One group of measurements; it leaves each target's directory empty."""

    def __call__(self, targets: list[Target], scale: Scale, results: Results) -> None:
        """Measure."""


def _rounds(targets: list[Target], repeat: int) -> Iterator[tuple[int, Target, Path]]:
    """Every repetition of every target, in turned order, each from rest and in a folder of its own."""
    for repetition in range(repeat):
        for position in range(len(targets)):
            target = targets[(position + repetition) % len(targets)]
            for other in targets:
                other.drain()
            folder = target.directory / f"r{repetition}"
            folder.mkdir()
            drop_kernel_caches()
            yield repetition, target, folder


def _drain(target: Target, results: Results) -> None:
    spent = seconds(target.drain)
    if target.daemon_pids():
        results.add("… then until it is in the bucket", target.name, spent, "s", better="less")


def sequential(targets: list[Target], scale: Scale, results: Results) -> None:
    """One large file: write in 1 MiB, fsync, close; then read it back in the same mount and from the bucket alone."""
    size = scale.sequential_bytes
    for repetition, target, folder in _rounds(targets, scale.repeat):
        path = folder / "large"
        spent = seconds(workloads.write_sequentially, path, size, repetition, fsync=True)
        results.add("write 1 MiB × n + fsync + close", target.name, size / MIB / spent, "MiB/s")
        _drain(target, results)
        drop_kernel_caches()
        spent = seconds(workloads.read_and_compare, path, size, repetition)
        results.add("read, kernel caches dropped", target.name, size / MIB / spent, "MiB/s")
        target.remount(wipe_cache=True)
        spent = seconds(workloads.read_and_compare, path, size, repetition)
        results.add("read, fresh mount, empty cache directory", target.name, size / MIB / spent, "MiB/s")
        path.unlink()
        folder.rmdir()


def small(targets: list[Target], scale: Scale, results: Results) -> None:
    """Many small files: create, write 1 KiB, close; and the same with fsync before the close."""
    wanted = workloads.names(scale.small_count)
    for fsync, what in ((False, "create + write 1 KiB + close"), (True, "create + write 1 KiB + fsync + close")):
        for _, target, folder in _rounds(targets, scale.repeat):
            spent = seconds(workloads.create_files, folder, wanted, SMALL, fsync=fsync)
            results.add(what, target.name, len(wanted) / spent, "files/s")
            workloads.unlink_files(folder, wanted)
            folder.rmdir()


def metadata(targets: list[Target], scale: Scale, results: Results) -> None:
    """Names and inodes: create empty, stat and list on a fresh mount, rename, unlink."""
    wanted = workloads.names(scale.small_count)
    renamed = ["n" + name for name in wanted]
    count = len(wanted)
    for _, target, folder in _rounds(targets, scale.repeat):
        spent = seconds(workloads.create_files, folder, wanted, b"", fsync=False)
        results.add("create + close, empty", target.name, count / spent, "files/s")
        target.remount()
        spent = seconds(workloads.stat_files, folder, wanted)
        results.add("stat, fresh mount", target.name, count / spent, "files/s")
        spent = seconds(workloads.rename_files, folder, wanted, "n")
        results.add("rename", target.name, count / spent, "files/s")
        target.drain()
        spent = seconds(workloads.unlink_files, folder, renamed)
        results.add("unlink", target.name, count / spent, "files/s")
        folder.rmdir()
    _listing(targets, scale, results)


def _listing(targets: list[Target], scale: Scale, results: Results) -> None:
    count = scale.listing_count
    wanted = workloads.names(count)
    for target in targets:
        (target.directory / "many").mkdir()
        workloads.create_files(target.directory / "many", wanted, b"", fsync=False)
    for repetition in range(scale.repeat):
        for position in range(len(targets)):
            target = targets[(position + repetition) % len(targets)]
            folder = target.directory / "many"
            for what, work in (
                (f"readdir of {count:,}, fresh mount", workloads.list_names),
                (f"readdir + stat of {count:,}, fresh mount", workloads.list_with_attributes),
            ):
                target.remount()
                spent = seconds(work, folder, count)
                results.add(what, target.name, count / spent, "entries/s")
    for target in targets:
        workloads.unlink_files(target.directory / "many", wanted)
        (target.directory / "many").rmdir()


def memory(targets: list[Target], scale: Scale, results: Results) -> None:
    """The daemon's highest memory while much is written, published, and read back from the bucket alone."""
    size, total = scale.memory_file_bytes, scale.memory_file_bytes * scale.memory_file_count / MIB
    for target in targets:
        folder = target.directory / "memory"
        folder.mkdir()
        paths = [folder / name for name in workloads.names(scale.memory_file_count)]
        with MemoryWatch(target.daemon_pids) as watch:
            spent = 0.0
            for seed, path in enumerate(paths):
                spent += seconds(workloads.write_sequentially, path, size, seed, fsync=False)
            results.add(f"write {total:,.0f} MiB in files", target.name, total / spent, "MiB/s")
            _drain(target, results)
            target.remount(wipe_cache=True)
            spent = 0.0
            for seed, path in enumerate(paths):
                spent += seconds(workloads.read_and_compare, path, size, seed)
            results.add("read it back from the bucket", target.name, total / spent, "MiB/s")
        if target.daemon_pids():
            results.add("daemon memory, peak, own pages", target.name, watch.anonymous_mib, "MiB", better="less")
            results.add("daemon memory, peak, with mapped", target.name, watch.resident_mib, "MiB", better="less")
        workloads.unlink_files(folder, [path.name for path in paths])
        folder.rmdir()


def flat(targets: list[Target], scale: Scale, results: Results) -> None:
    """What one operation costs in a directory of a thousand entries and of a million."""
    for target in targets:
        folder = target.directory / "flat"
        folder.mkdir()
        filled = 0
        draw = Random(1)
        costs: list[dict[str, float]] = []
        for level in scale.flat_levels:
            more = [f"e{number:08d}" for number in range(filled, level)]
            workloads.create_files(folder, more, b"", fsync=False)
            filled = level
            try:
                target.drain(timeout_s=FLAT_DRAIN_S)
            except TargetError as error:
                results.note(f"{target.name} at {level:,} entries was measured while still publishing: {error}")
            costs.append(_probe(folder, level, draw, scale.flat_probe_count))
            for what, cost_us in costs[-1].items():
                results.add(f"{what}, {level:,} entries", target.name, cost_us, "µs", better="less")
        for what in costs[0]:
            growth = costs[-1][what] / costs[0][what]
            results.add(f"{what}, most entries against fewest", target.name, growth, "×", better="less")
        target.stop()
        target.start()


def _probe(folder: Path, level: int, draw: Random, count: int) -> dict[str, float]:
    """The cost of each kind of operation now, in µs; the directory has as many entries after as before."""
    fresh = [f"p{number:06d}" for number in draw.sample(range(1_000_000), count)]
    known = [f"e{number:08d}" for number in draw.sample(range(level), count)]
    stale = ["q" + name for name in fresh]
    drop_kernel_caches()
    costs_s = {
        "create": seconds(workloads.create_files, folder, fresh, b"", fsync=False),
        "stat": seconds(workloads.stat_files, folder, known),
        "rename": seconds(workloads.rename_files, folder, fresh, "q"),
        "unlink": seconds(workloads.unlink_files, folder, stale),
    }
    return {what: cost_s / count * 1e6 for what, cost_s in costs_s.items()}


SCENARIOS: dict[str, Scenario] = {
    "sequential": sequential,
    "small": small,
    "metadata": metadata,
    "memory": memory,
    "flat": flat,
}
