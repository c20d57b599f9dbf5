"""Makes ``rig`` importable by the tests beside it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(params=[100, 300_000], ids=["inline", "file"])
def size(request: pytest.FixtureRequest) -> int:
    """Bytes of a content that is kept in the journal, and of one that has a staging file."""
    return int(request.param)
