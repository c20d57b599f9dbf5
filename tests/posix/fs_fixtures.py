"""Fixtures of these suites, imported by each ``conftest.py``."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from ckptfs.testing.mounts import Mount

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_numbers = itertools.count()


@pytest.fixture(scope="session")
def shared_mount(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mount]:
    """A file:// bucket, mounted once for all the tests that leave the mount as a whole alone."""
    base = tmp_path_factory.mktemp("shared")
    (base / "bucket").mkdir()
    with Mount((base / "bucket").as_uri(), base / "mnt", base / "cache") as mounted:
        yield mounted


@pytest.fixture
def here(shared_mount: Mount) -> Path:
    """A new empty directory on the shared mount."""
    directory = shared_mount.path / f"here{next(_numbers)}"
    directory.mkdir()
    return directory
