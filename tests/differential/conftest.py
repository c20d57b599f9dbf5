"""Puts the support modules of the filesystem suites on the path."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "posix"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from fs_fixtures import here, shared_mount

__all__ = ["here", "shared_mount"]
