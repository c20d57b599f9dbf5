"""A damaged journal is named, with what to do, and not touched."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ckptfs.env import RealEnv
from ckptfs.errors import IntegrityError
from ckptfs.namespace import Namespace

if TYPE_CHECKING:
    from pathlib import Path


def test_a_file_that_is_no_database_is_named_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "namespace.sqlite"
    path.write_bytes(b"not a database" * 1000)
    with pytest.raises(IntegrityError, match=r"namespace\.sqlite: the journal is damaged") as raised:
        Namespace(RealEnv(), path)
    assert "--cache-dir" in raised.value.hint
    assert path.read_bytes() == b"not a database" * 1000
