"""Every store, bare and wrapped, over the one suite."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ckptfs.env import RealEnv
from ckptfs.objectstore.file import FileObjectStore
from ckptfs.objectstore.memory import MemoryBucket, MemoryObjectStore
from ckptfs.objectstore.retry import RetryingObjectStore
from ckptfs.objectstore.s3 import S3ObjectStore
from ckptfs.objectstore.url import open_store, parse_store_url
from ckptfs.testing.conformance import CASES, Case, Deviation, Subject, case_name, run_case, unique_prefix

if TYPE_CHECKING:
    from pathlib import Path

    from ckptfs.testing.servers import WeedServer

ENV = RealEnv()

# SeaweedFS 4.48 keeps objects in a directory tree, which shows.
WEED_MANGLES = frozenset(
    {
        "backslash",  # becomes a slash
        "controls",  # its continuation tokens are keys, and come back damaged where XML cannot carry one
        "empty-name",  # "a//b" becomes "a/b"
        "slash-first",  # and so does this one, behind a prefix
    }
)
WEED_DEVIATES = frozenset(
    {
        Deviation.DIRECTORY_OBJECTS,
        Deviation.EMPTY_PREFIXES,
        Deviation.LONG_PAGES,
        Deviation.RACING_COMPLETIONS,
        Deviation.TREE_ORDER,
        Deviation.UPLOAD_ENCODING,
        Deviation.UPLOAD_KEYS_UNCHECKED,
    }
)

over_all_cases = pytest.mark.parametrize("case", CASES, ids=case_name)


@over_all_cases
def test_memory_store(case: Case) -> None:
    bucket = MemoryBucket()
    run_case(case, Subject(open=lambda: MemoryObjectStore(ENV, bucket)))


@over_all_cases
def test_memory_store_with_retries(case: Case) -> None:
    bucket = MemoryBucket()
    run_case(case, Subject(open=lambda: RetryingObjectStore(MemoryObjectStore(ENV, bucket), ENV)))


@over_all_cases
def test_file_store(case: Case, tmp_path: Path) -> None:
    run_case(case, Subject(open=lambda: FileObjectStore(str(tmp_path), ENV)))


@over_all_cases
def test_file_store_as_opened_by_url(case: Case, tmp_path: Path) -> None:
    run_case(case, Subject(open=lambda: open_store(tmp_path.as_uri(), ENV)))


@over_all_cases
def test_s3_store(case: Case, weed: WeedServer) -> None:
    url = parse_store_url(weed.url("conformance", unique_prefix()))
    run_case(case, Subject(open=lambda: S3ObjectStore(url, ENV), mangled_keys=WEED_MANGLES, deviations=WEED_DEVIATES))


@over_all_cases
def test_s3_store_as_opened_by_url(case: Case, weed: WeedServer) -> None:
    url = weed.url("conformance", unique_prefix())
    run_case(case, Subject(open=lambda: open_store(url, ENV), mangled_keys=WEED_MANGLES, deviations=WEED_DEVIATES))
