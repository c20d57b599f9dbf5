"""Every row of the truth table in every combination; REC-1: doing it again changes nothing."""

from __future__ import annotations

import itertools
import stat
from typing import TYPE_CHECKING

import pytest
import trio

from ckptfs.disk.local import LocalDisk
from ckptfs.env import RealEnv
from ckptfs.namespace import Namespace
from ckptfs.namespace.rows import PLACE_FILE, PLACE_INLINE, PLACE_NONE
from ckptfs.recovery import recover
from ckptfs.staging import Staging
from ckptfs.types import NO_CONTENT, ROOT_INO, ContentState, Key

if TYPE_CHECKING:
    from pathlib import Path

    from ckptfs.types import ContentId, Ino

S = ContentState
UNPUBLISHED = {S.SEALED, S.DURABLE, S.REPLICATED, S.PUBLISHING}
SIZE = 1000


class Life:
    """A cache directory between two lives."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.staging = Staging(LocalDisk(RealEnv()), path / "contents")
        self.staging.prepare()
        self.open()
        self.namespace.tree.make_root(0o755, 0, 0)

    def open(self) -> None:
        self.namespace = Namespace(RealEnv(), self.path / "n.sqlite")

    def end(self) -> None:
        async def run() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.namespace.state.run)
                self.namespace.state.touch()
                self.namespace.state.close_soon()

        trio.run(run)
        self.namespace.state.close()

    def recover(self) -> dict[str, object]:
        self.open()
        recover(self.namespace, self.staging, self.path / "lost")
        found = self.snapshot()
        self.end()
        return found

    def snapshot(self) -> dict[str, object]:
        inode = self.namespace.tree.lookup(ROOT_INO, b"f")
        rows = {
            number: self.namespace.contents.get(number)
            for number in range(1, self.namespace.state.next_content)  # type: ignore[arg-type]
        }
        return {
            "committed": None if inode is None else inode.content,
            "size": None if inode is None else inode.size,
            "states": {number: row.state for number, row in rows.items() if row is not None},
            "places": {number: row.place for number, row in rows.items() if row is not None},
            "obliged": self.namespace.bucket.obligation(Key("f")) is not None,
            "files": sorted(self.staging.contents()),
        }


def build(
    life: Life, state: ContentState, place: int, committed: str, bytes_here: str, *, named: bool = True
) -> tuple[Ino, ContentId]:
    """One file ``f`` with one content in the given situation; ``committed`` to it, to "none", or to an "other" one."""
    namespace = life.namespace
    inode = namespace.tree.create(ROOT_INO, b"f", stat.S_IFREG | 0o644, 0, 0)
    if committed == "other":
        other = namespace.contents.from_bucket(inode.ino, Key("f"), "e", 7)  # type: ignore[arg-type]
        inode.content, inode.size = other.id, 7
    content = namespace.contents.begin(inode.ino, place)
    content.state, content.size = state, SIZE
    have = {"whole": SIZE, "short": SIZE // 2, "missing": None}[bytes_here]
    if have is not None and place == PLACE_FILE:
        life.staging.path(content.id).write_bytes(b"x" * have)
    if have is not None and place == PLACE_INLINE:
        content.data = b"x" * have
    if committed == "it":
        inode.content, inode.size = content.id, SIZE
    ino, number = inode.ino, content.id
    if not named:
        namespace.tree.unlink(ROOT_INO, b"f")
    life.end()
    return ino, number


def expected(state: ContentState, committed: str, bytes_here: str) -> tuple[ContentState | None, str]:
    """State of the content afterwards (``None``: dropped), and what the file is committed to."""
    if state is S.OPEN:
        if committed == "it":
            return S.TORN, "it"
        if committed == "none" and bytes_here != "missing":
            return S.TORN, "it"
        return None, committed
    if committed != "it":
        return None, committed
    if state in UNPUBLISHED:
        if bytes_here != "whole":
            return S.FAULTY, "it"
        return (S.DURABLE if state is S.PUBLISHING else state), "it"
    if state is S.PUBLISHED and bytes_here != "whole":
        return S.RECLAIMED, "it"
    return state, "it"


SITUATIONS = [
    (state, place, committed, bytes_here)
    for state, place, committed, bytes_here in itertools.product(
        ContentState, (PLACE_FILE, PLACE_INLINE), ("it", "none", "other"), ("whole", "short", "missing")
    )
    if state is not S.RECLAIMED
]


@pytest.mark.parametrize(("state", "place", "committed", "bytes_here"), SITUATIONS)
def test_each_situation_ends_as_the_table_says_and_again(
    tmp_path: Path, state: ContentState, place: int, committed: str, bytes_here: str
) -> None:
    life = Life(tmp_path)
    _, content = build(life, state, place, committed, bytes_here)
    first = life.recover()
    wanted_state, wanted_commit = expected(state, committed, bytes_here)
    states = first["states"]
    assert isinstance(states, dict)
    assert states.get(content) is wanted_state
    assert first["committed"] == {"it": content, "none": NO_CONTENT, "other": content - 1}[wanted_commit]
    assert first["obliged"] == (wanted_state in {S.SEALED, S.DURABLE, S.REPLICATED} and wanted_commit == "it")
    if wanted_state is None:
        assert first["files"] == []
    if state is S.OPEN and wanted_state is S.TORN and bytes_here != "missing":
        assert first["size"] == (SIZE if bytes_here == "whole" else SIZE // 2)
    assert life.recover() == first


@pytest.mark.parametrize("state", [S.OPEN, S.DURABLE, S.PUBLISHED])
def test_a_file_without_names_is_gone_with_its_bytes(tmp_path: Path, state: ContentState) -> None:
    life = Life(tmp_path)
    ino, content = build(life, state, PLACE_FILE, "it", "whole", named=False)
    first = life.recover()
    assert first["states"] == {}
    assert first["files"] == []
    life.open()
    assert life.namespace.state.inodes.get(ino) is None
    assert life.namespace.contents.get(content) is None


def test_what_only_the_bucket_has_is_left_alone(tmp_path: Path) -> None:
    life = Life(tmp_path)
    inode = life.namespace.tree.create(ROOT_INO, b"f", stat.S_IFREG | 0o644, 0, 0)
    content = life.namespace.contents.from_bucket(inode.ino, Key("f"), "e", 7)  # type: ignore[arg-type]
    inode.content, inode.size = content.id, 7
    number = content.id
    life.end()
    found = life.recover()
    assert found["states"] == {number: S.RECLAIMED}
    assert found["places"] == {number: PLACE_NONE}
    assert found["committed"] == number
    assert found["obliged"] is False


def test_a_staging_file_that_nothing_is_known_of_is_kept_aside_and_its_number_never_given_out(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.end()
    unknown = 12345
    life.staging.path(unknown).write_bytes(b"who wrote this")  # type: ignore[arg-type]
    life.recover()
    assert [path.read_bytes() for path in (tmp_path / "lost").iterdir()] == [b"who wrote this"]
    life.open()
    assert life.namespace.state.next_content > unknown
