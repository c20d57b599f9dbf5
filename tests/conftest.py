"""What every test may use: real mounts over file:// and over a real S3 server. And: nothing is ever skipped."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ckptfs.testing.mounts import Mount

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path


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
