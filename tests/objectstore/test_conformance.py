"""Every store, bare and wrapped, over the one suite."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ckptfs.env import RealEnv
from ckptfs.objectstore.file import FileObjectStore
from ckptfs.objectstore.memory import MemoryBucket, MemoryObjectStore
from ckptfs.testing.conformance import CASES, Case, Subject, case_name, run_case

if TYPE_CHECKING:
    from pathlib import Path

ENV = RealEnv()

over_all_cases = pytest.mark.parametrize("case", CASES, ids=case_name)


@over_all_cases
def test_memory_store(case: Case) -> None:
    bucket = MemoryBucket()
    run_case(case, Subject(open=lambda: MemoryObjectStore(ENV, bucket)))


@over_all_cases
def test_file_store(case: Case, tmp_path: Path) -> None:
    run_case(case, Subject(open=lambda: FileObjectStore(str(tmp_path), ENV)))
