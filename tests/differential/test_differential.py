"""The same random operations on the mount and on a local directory: results, errnos and trees are equal.

``CKPTFS_DIFFERENTIAL_EXAMPLES=20000`` runs longer, with new random examples instead of the fixed ones.
"""

from __future__ import annotations

import itertools
import os
import shutil
import time
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from fs_arguments import Operation, operation_lists
from fs_pair import Pair, reference_directory
from fs_support import files_of, fsync_directory, payload
from hypothesis import HealthCheck, Phase, given, settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_WANTED = os.environ.get("CKPTFS_DIFFERENTIAL_EXAMPLES")
_EXAMPLE_COUNT = int(_WANTED or 200)
_SURVIVOR_COUNT = max(20, _EXAMPLE_COUNT // 10)

_SHRINK_S = 60.0


def _settings(example_count: int) -> settings:
    return settings(
        max_examples=example_count,
        derandomize=_WANTED is None,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate,),  # made small by _fail_small
        report_multiple_bugs=False,
    )


class Bench:
    """Makes pairs, each in directories of its own."""

    def __init__(self, mount: Path, reference: Path) -> None:
        self._mount = mount
        self._local = reference / "trees"
        self._scratch = reference / "scratch"
        self._local.mkdir(mode=0o755)
        self._scratch.mkdir()
        self._numbers = itertools.count()

    def pair(self) -> Pair:
        """Two directories with the same beginnings: a few files and directories, so that operations meet something."""
        name = f"t{next(self._numbers)}"
        roots = [above / name / "root" for above in (self._mount, self._local)]  # a link to ../a stays in its pair
        for root in roots:
            root.mkdir(parents=True)
            root.parent.chmod(0o755)
            root.chmod(0o777)
            (root / "d").mkdir(mode=0o755)
            (root / "d" / "b").write_bytes(payload(100))
            (root / "a").write_bytes(payload(6000))
            (root / "a").chmod(0o666)
            (root / "l").symlink_to("d")
        return Pair(*roots, self._scratch)

    @staticmethod
    def discard(pair: Pair) -> None:
        """Remove both trees, to keep the run small."""
        shutil.rmtree(pair.mount_path.parent)
        shutil.rmtree(pair.local_path.parent)


@pytest.fixture
def reference() -> Iterator[Path]:
    root = reference_directory()
    root.chmod(0o755)
    before = os.umask(0)  # with a default ACL the pyfuse3 driver cuts by the umask too: tests/posix/test_acl.py
    working_directory = os.open(".", os.O_RDONLY)
    try:
        yield root
    finally:
        os.umask(before)
        os.fchdir(working_directory)
        os.close(working_directory)
        shutil.rmtree(root)


def _go_through(pair: Pair, operations: list[Operation]) -> None:
    try:
        for function, arguments in operations:
            pair.run(function, arguments)
        pair.compare_open_files()
    finally:
        pair.close()
    pair.compare_trees()


def _disagreement(bench: Bench, operations: list[Operation]) -> AssertionError | None:
    try:
        _go_through(bench.pair(), operations)
    except AssertionError as error:
        return error
    return None


def _fail_small(bench: Bench, operations: list[Operation], error: AssertionError) -> NoReturn:
    """Leave out operations as long as the sides still disagree; raise the one with the shortest trace."""
    end_s = time.monotonic() + _SHRINK_S
    step = len(operations) // 2
    while step and time.monotonic() < end_s:
        start = 0
        while start < len(operations) and time.monotonic() < end_s:
            fewer = operations[:start] + operations[start + step :]
            smaller = _disagreement(bench, fewer)
            if smaller is None:
                start += step
            else:
                operations, error = fewer, smaller
        step //= 2
    raise error


@pytest.mark.timeout(_EXAMPLE_COUNT * 3)
def test_same_operations_same_results(here: Path, reference: Path) -> None:
    """DESIGN §1: full POSIX for applications. Every result, errno and final tree is that of a local filesystem."""
    bench = Bench(here, reference)

    @_settings(_EXAMPLE_COUNT)
    @given(operation_lists())
    def examples(operations: list[Operation]) -> None:
        pair = bench.pair()
        try:
            _go_through(pair, operations)
        except AssertionError as error:
            _fail_small(bench, operations, error)
        bench.discard(pair)

    examples()


def _make_survivors(mount: Path, reference: Path) -> list[Pair]:
    """Trees that random operations left, all closed: with ``--close=sync`` they are on the disk of this node."""
    bench = Bench(mount, reference)
    pairs: list[Pair] = []

    @_settings(_SURVIVOR_COUNT)
    @given(operation_lists())
    def examples(operations: list[Operation]) -> None:
        pair = bench.pair()
        _go_through(pair, operations)
        pairs.append(pair)

    examples()
    assert len(pairs) >= _SURVIVOR_COUNT // 2
    return pairs


@pytest.mark.timeout(_SURVIVOR_COUNT * 3 + 120)
def test_trees_survive_a_killed_daemon(mount: Any, reference: Path) -> None:
    """DESIGN §2: what was closed (``--close=sync``), and every operation before an fsync of a directory, is kept."""
    pairs = _make_survivors(mount.path, reference)
    fsync_directory(mount.path)
    mount.kill()
    mount.remount()
    for pair in pairs:
        pair.compare_trees()


@pytest.mark.timeout(_SURVIVOR_COUNT * 3 + 120)
def test_trees_come_back_from_the_bucket(mount: Any, reference: Path) -> None:
    """DESIGN §1: with an empty cache directory the bucket alone gives every file's bytes back."""
    pairs = _make_survivors(mount.path, reference)
    mount.wait()
    mount.wipe_cache_and_remount()
    for pair in pairs:
        # A directory without any file is nowhere in the bucket of this version.
        found = files_of(pair.mount_path) if pair.mount_path.exists() else {}
        assert found == files_of(pair.local_path), pair.told("the bucket gives other files back after")
