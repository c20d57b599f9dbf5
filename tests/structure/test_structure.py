"""The structure is tested: style, types and layers hold from the first commit on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

CHECKS = {
    "style": ("-m", "ruff", "check", "--output-format=concise", "."),
    "format": ("-m", "ruff", "format", "--check", "--diff", "."),
    "types": ("-m", "mypy"),
    "layers": ("-c", "from importlinter.cli import lint_imports_command; lint_imports_command(['--no-logo'])"),
}


@pytest.mark.parametrize("name", CHECKS)
def test_the_tree_passes(name: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "NO_COLOR": "1"}
    result = subprocess.run(
        [sys.executable, *CHECKS[name]], cwd=ROOT, env=environment, text=True, capture_output=True, check=False
    )
    if result.returncode != 0:
        pytest.fail(f"{name}:\n{result.stdout}\n{result.stderr}", pytrace=False)
