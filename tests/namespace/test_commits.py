"""NS-3: nothing is durable before its record is, and callers that sync together share one commit."""

from __future__ import annotations

import shutil
import stat
from typing import TYPE_CHECKING

import apsw
import pytest
import trio

from ckptfs.env import RealEnv
from ckptfs.errors import IntegrityError, SpaceError
from ckptfs.namespace import Namespace
from ckptfs.types import ROOT_INO

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ckptfs.namespace.database import Batch, Database


class Gate:
    """Stands before the database's commit: counts, holds back, or fails it."""

    def __init__(self, database: Database) -> None:
        self._commit = database.commit
        self.durable_commits = 0
        self.error: Callable[[], apsw.Error] | None = None
        database.commit = self  # type: ignore[method-assign]

    def __call__(self, batch: Batch) -> None:
        if self.error is not None:
            raise self.error()
        self._commit(batch)
        self.durable_commits += batch.durable


def opened(path: Path) -> Namespace:
    namespace = Namespace(RealEnv(), path)
    namespace.tree.make_root(0o755, 0, 0)
    return namespace


def create(namespace: Namespace, name: bytes) -> None:
    namespace.tree.create(ROOT_INO, name, stat.S_IFREG | 0o600, 0, 0)


def test_what_was_synced_is_in_a_copy_of_the_files_taken_right_then(tmp_path: Path) -> None:
    (tmp_path / "live").mkdir()
    namespace = opened(tmp_path / "live" / "n.sqlite")

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(namespace.state.run)
            for number in range(20):
                create(namespace, b"%d" % number)
                await namespace.state.sync()
                copy = tmp_path / f"copy{number}"
                shutil.copytree(tmp_path / "live", copy)
                survivor = Namespace(RealEnv(), copy / "n.sqlite")
                assert survivor.tree.lookup(ROOT_INO, b"%d" % number) is not None
                assert survivor.state.lsn >= namespace.state.lsn_durable
                survivor.state.close()
            nursery.cancel_scope.cancel()

    trio.run(run)


def test_callers_that_sync_together_share_a_commit(tmp_path: Path) -> None:
    namespace = opened(tmp_path / "n.sqlite")
    gate = Gate(namespace.state.database)

    async def run() -> None:
        async def writer(number: int) -> None:
            create(namespace, b"%d" % number)
            await namespace.state.sync()
            assert namespace.state.lsn_durable > number

        async with trio.open_nursery() as nursery:
            nursery.start_soon(namespace.state.run)
            async with trio.open_nursery() as writers:
                for number in range(64):
                    writers.start_soon(writer, number)
            nursery.cancel_scope.cancel()
        assert gate.durable_commits <= 3

    trio.run(run)


def test_a_full_disk_fails_the_sync_and_loses_nothing(tmp_path: Path) -> None:
    namespace = opened(tmp_path / "n.sqlite")
    gate = Gate(namespace.state.database)

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(namespace.state.run)
            gate.error = lambda: apsw.FullError("database or disk is full")
            create(namespace, b"a")
            with pytest.raises(SpaceError):
                await namespace.state.sync()
            assert namespace.state.lsn_durable < namespace.state.lsn
            assert namespace.tree.lookup(ROOT_INO, b"a") is not None
            gate.error = None
            await namespace.state.sync()
            nursery.cancel_scope.cancel()
        found = namespace.state.database.query("SELECT count(*) FROM dentry WHERE name = ?", (b"a",))
        assert found == [(1,)]

    trio.run(run)


def test_after_a_failed_sync_of_the_journal_nothing_is_acknowledged_any_more(tmp_path: Path) -> None:
    namespace = opened(tmp_path / "n.sqlite")
    gate = Gate(namespace.state.database)

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(namespace.state.run)
            gate.error = lambda: apsw.IOError("disk I/O error")
            create(namespace, b"a")
            with pytest.raises(IntegrityError):
                await namespace.state.sync()
            gate.error = None
            with pytest.raises(IntegrityError):
                create(namespace, b"b")
            with pytest.raises(IntegrityError):
                await namespace.state.sync()

    trio.run(run)


def test_every_operation_and_its_record_are_in_one_transaction(tmp_path: Path) -> None:
    """A copy of the database file taken at any commit has exactly the names that its journal tells of."""
    namespace = opened(tmp_path / "n.sqlite")
    seen: list[tuple[int, int]] = []
    commit = namespace.state.database.commit

    def watched(batch: Batch) -> None:
        commit(batch)
        look = apsw.Connection(str(tmp_path / "n.sqlite"), flags=apsw.SQLITE_OPEN_READONLY)
        ((names,),) = look.execute("SELECT count(*) FROM dentry").fetchall()
        ((records,),) = look.execute("SELECT count(*) FROM journal WHERE op = 'create'").fetchall()
        look.close()
        seen.append((names, records))

    namespace.state.database.commit = watched  # type: ignore[method-assign]

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(namespace.state.run)
            for number in range(300):
                create(namespace, b"%d" % number)
                await trio.lowlevel.checkpoint()
                if number % 50 == 0:
                    await namespace.state.sync()
            await namespace.state.sync()
            nursery.cancel_scope.cancel()

    trio.run(run)
    assert len(seen) > 5
    assert all(names == records for names, records in seen)
    assert seen[-1] == (300, 300)
