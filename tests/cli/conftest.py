"""Every test of the command line has a registry of mounts of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def runtime_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The registry's directory; its long path also shows that sockets do not depend on its length."""
    directory = tmp_path / ("a-runtime-directory-whose-path-is-longer-than-an-address-of-a-socket-may-be" * 2)
    monkeypatch.setenv("CKPTFS_RUNTIME_DIR", str(directory))
    return directory
