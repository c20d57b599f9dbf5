"""What every test may use: real mounts over file:// and over a real S3 server. And: nothing is ever skipped."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from ckptfs.testing.mounts import Mount
from ckptfs.testing.servers import WeedServer

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

_bucket_numbers = itertools.count(1)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A skipped test is a failed one: it would hide a missing FUSE, server or framework."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"nothing is skipped here, yet this test was: {report.longrepr}"
    return report


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    """The directory that stands for the bucket of :func:`mount`: its files are the objects."""
    directory = tmp_path / "bucket"
    directory.mkdir()
    return directory


@pytest.fixture
def mount(tmp_path: Path, bucket: Path) -> Iterator[Mount]:
    """A mounted, empty file:// bucket."""
    with Mount(bucket.as_uri(), tmp_path / "mnt", tmp_path / "cache") as mounted:
        yield mounted


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WeedServer]:
    """A real S3 server, one for the whole run. A test that stops or disturbs it starts one of its own."""
    with WeedServer(tmp_path_factory.mktemp("weed")) as server:
        yield server


@pytest.fixture
def s3_bucket(s3_server: WeedServer) -> str:
    """The name of a new, empty bucket on :func:`s3_server`."""
    name = f"bucket-{next(_bucket_numbers)}"
    s3_server.make_bucket(name)
    return name


@pytest.fixture
def s3_mount(tmp_path: Path, s3_server: WeedServer, s3_bucket: str) -> Iterator[Mount]:
    """:func:`s3_bucket`, mounted under a prefix."""
    url = s3_server.url(s3_bucket, "prefix")
    with Mount(url, tmp_path / "s3-mnt", tmp_path / "s3-cache", env=s3_server.credentials()) as mounted:
        yield mounted
