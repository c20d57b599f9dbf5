"""What the documents name is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_test_that_a_document_names_exists(document: Path) -> None:
    for file, name in re.findall(r"`([\w/]+\.py)::(\w+)`", document.read_text()):
        source = ROOT / "tests" / file
        assert source.is_file(), f"{document.name} names {source.relative_to(ROOT)}"
        defined = re.search(rf"^(?:async )?def {name}\(", source.read_text(), re.MULTILINE)
        assert defined, f"{document.name} names {file}::{name}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_local_link_leads_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", document.read_text()):
        assert (document.parent / target).exists(), f"{document.name} links to {target}"
