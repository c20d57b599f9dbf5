"""A real S3 server for the tests of this folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ckptfs.testing.servers import WeedServer

if TYPE_CHECKING:
    from collections.abc import Iterator

BUCKET = "conformance"


@pytest.fixture(scope="session")
def weed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WeedServer]:
    """One server with one bucket for the session; a test takes a prefix of its own."""
    with WeedServer(tmp_path_factory.mktemp("weed")) as server, server.environment():
        server.make_bucket(BUCKET)
        yield server
