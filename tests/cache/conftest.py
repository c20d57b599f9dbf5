"""Puts the support module of the publication and cache tests on the path, and keeps their staging directories small."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "publish"))


@pytest.fixture(autouse=True)
def few_directories(monkeypatch: pytest.MonkeyPatch) -> None:
    """Making and removing 256 of them for each test would take longer than the tests."""
    monkeypatch.setattr("ckptfs.staging.files._FAN_OUT", 4)
