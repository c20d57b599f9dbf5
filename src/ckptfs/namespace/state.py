"""The namespace's state in memory and its way to the disk: tables, counters, journal records, and the commit loop."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

import apsw
import trio

from ckptfs.errors import CkptfsError, IntegrityError, SpaceError
from ckptfs.namespace.database import Batch, Database
from ckptfs.namespace.rows import (
    INODE_COLUMN_COUNT,
    Content,
    Dentry,
    Inode,
    Names,
    ObjectRow,
    Obligation,
    TreeMove,
    UploadRow,
    Xattrs,
)
from ckptfs.namespace.tables import Table
from ckptfs.types import ContentId, Ino, Key, Lsn

if TYPE_CHECKING:
    from pathlib import Path

    from ckptfs.env import Env
    from ckptfs.namespace.rows import Values

COMMIT_INTERVAL_S = 0.01
"""How long mutations that nobody syncs may gather before they are committed together."""

MARKED_ROWS_MAX = 20_000
"""Rows without a commit from which mutations wait for the disk (:meth:`State.throttle`)."""

CONTENTS_MAX = 1_000
"""Contents in memory, and contents without a commit from which mutations wait: each may carry 64 KiB of bytes."""

JOURNAL_RECORDS_KEPT = 100_000
"""Journal records kept behind the newest; older ones have no reader once their rows are committed."""

_RETRY_S = 0.5

log = logging.getLogger(__name__)


class State:
    """Tables in memory, counters, and the one writer of the SQLite file.

    Mutators change rows, call :meth:`record`, and return: plain functions, so no other task sees them half done. A
    task that promised durability awaits :meth:`sync`.

    Args:
        env: clock and threads.
        path: the SQLite file.
    """

    def __init__(self, env: Env, path: Path) -> None:
        self.env = env
        self.database = Database(path)
        self.inodes: Table[Ino, Inode] = Table("inode", INODE_COLUMN_COUNT, Inode, rows_max=50_000)
        self.dentries: Table[tuple[Ino, bytes], Dentry] = Table("dentry", 4, Dentry, rows_max=100_000)
        self.names: Table[Ino, Names] = Table("names", 2, Names.decode)
        self.xattrs: Table[Ino, Xattrs] = Table("xattr", 2, Xattrs.decode)
        self.contents: Table[ContentId, Content] = Table("content", 11, Content.decode, rows_max=CONTENTS_MAX)
        self.objects: Table[Key, ObjectRow] = Table("object", 4, ObjectRow)
        self.obligations: Table[Key, Obligation] = Table("obligation", 3, Obligation.decode)
        self.uploads: Table[str, UploadRow] = Table("upload", 2, UploadRow)
        self.tree_moves: Table[Lsn, TreeMove] = Table("tree_move", 3, TreeMove)
        self._tables: tuple[Table, ...] = (  # type: ignore[type-arg]
            self.inodes,
            self.dentries,
            self.names,
            self.xattrs,
            self.contents,
            self.objects,
            self.obligations,
            self.uploads,
            self.tree_moves,
        )
        for table in self._tables:
            table.attach(self.database.reader)
        counters: dict[str, int] = dict(self.database.query("SELECT name, value FROM meta"))
        self.next_ino = counters.get("next_ino", 2)
        self.next_dentry = counters.get("next_dentry", 1)
        self.next_content = counters.get("next_content", 1)
        self.lsn = Lsn(counters.get("lsn", 0))
        self.mark: int = counters.get("mark") or int(env.token(7), 16)
        self.lsn_committed = self.lsn
        self.lsn_durable = self.lsn
        self.broken: CkptfsError | None = None
        """Set for good when the disk failed a sync of the journal: nothing is acknowledged after that."""
        self.fresh_names: dict[Ino, dict[int, bytes]] = {}
        """Names that may not be in the file yet: parent → position → name; readdir adds them to what it reads there."""
        self._fresh_in_flight: list[tuple[Ino, int]] = []
        self._fresh_marked: list[tuple[Ino, int]] = []
        self._records: list[Values] = []
        self._dirty = trio.Event()
        self._hurry = trio.Event()
        self._landed = trio.Event()
        self._sync_lsn = Lsn(0)
        self._closing = False

    def allocate_ino(self) -> Ino:
        """A number that no inode ever had."""
        ino = Ino(self.next_ino)
        self.next_ino += 1
        return ino

    def allocate_content(self) -> ContentId:
        """A number that no content ever had."""
        content = ContentId(self.next_content)
        self.next_content += 1
        return content

    def add_dentry(self, parent: Ino, name: bytes, ino: Ino) -> None:
        """Add a name, or make an existing one lead to ``ino`` and keep its position."""
        existing = self.dentries.get((parent, name))
        if existing is not None:
            existing.ino = ino
            self.dentries.mark((parent, name))
            return
        position = self.next_dentry
        self.next_dentry += 1
        self.dentries.put((parent, name), Dentry(parent, name, position, ino))
        self.fresh_names.setdefault(parent, {})[position] = name
        self._fresh_marked.append((parent, position))

    def remove_dentry(self, dentry: Dentry) -> None:
        """Remove a name."""
        self.dentries.remove((dentry.parent, dentry.name))
        self._forget_fresh(dentry.parent, dentry.id)

    def _forget_fresh(self, parent: Ino, position: int) -> None:
        fresh = self.fresh_names.get(parent)
        if fresh is not None and fresh.pop(position, None) is not None and not fresh:
            del self.fresh_names[parent]

    def record(self, op: str, /, **arguments: str | int | bytes | None) -> Lsn:
        """Append a journal record for a mutation whose rows were just changed, and give its lsn."""
        assert self.broken is None or self._closing, "mutators call check() first"
        self.lsn = Lsn(self.lsn + 1)
        text = {
            key: value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value
            for key, value in arguments.items()
        }
        self._records.append((self.lsn, self.env.wall_ns(), op, json.dumps(text)))
        self._dirty.set()
        return self.lsn

    def touch(self) -> None:
        """Say that rows were changed without a journal record (what only mirrors the bucket, or counts)."""
        self._dirty.set()

    def check(self) -> None:
        """Raise what broke the journal, if anything did: no mutation may be promised any more."""
        if self.broken is not None:
            raise self.broken

    async def throttle(self) -> None:
        """Wait while too much is not committed, in rows or bytes. May interleave with anything."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while self._is_behind() and self.broken is None:
            self._hurry.set()
            await self._landed.wait()

    def _is_behind(self) -> bool:
        return (
            self.inodes.marked_count + self.dentries.marked_count > MARKED_ROWS_MAX
            or self.contents.marked_count > CONTENTS_MAX
        )

    async def sync(self, lsn: Lsn | None = None) -> None:
        """Return when every mutation up to ``lsn`` (default: up to now) is on stable storage.

        Calls that wait at the same time share one commit.

        Raises:
            SpaceError: the disk of the journal is full; nothing is lost in memory, a later sync may succeed.
            IntegrityError: the disk failed a sync; no later sync succeeds either.
        """
        wanted = self.lsn if lsn is None else lsn
        failures = self._failure_count
        await trio.lowlevel.checkpoint_if_cancelled()
        while self.lsn_durable < wanted:
            self.check()
            self._sync_lsn = max(self._sync_lsn, wanted)
            self._dirty.set()
            self._hurry.set()
            await self._landed.wait()
            if self._failure_count != failures and self.broken is None and self.lsn_durable < wanted:
                raise SpaceError(
                    "the disk of the cache directory is full: the journal cannot be written",
                    hint="free space on the disk of the cache directory",
                )

    async def flush(self) -> None:
        """Return when every mutation up to now is in the SQLite file, durable or not: SQL then sees it."""
        await trio.lowlevel.checkpoint_if_cancelled()
        waiting = bool(self._records) or any(table.marked_count for table in self._tables)
        wanted = self._cut_count + waiting
        while self._landed_count < wanted:
            self.check()
            self._dirty.set()
            self._hurry.set()
            await self._landed.wait()

    _failure_count = 0
    _cut_count = 0
    _landed_count = 0
    """The newest batch that was begun, and the newest that landed (it holds what failed ones before it had)."""

    async def run(self) -> None:
        """The commit loop.

        Ends when :meth:`close_soon` was called and everything is committed, or with the journal broken.
        """
        limiter = trio.CapacityLimiter(1)
        while True:
            await self._dirty.wait()
            if self._sync_lsn <= self.lsn_durable and not self._closing:
                with trio.move_on_after(COMMIT_INTERVAL_S):
                    await self._hurry.wait()
            committed = await self._commit_once(limiter)
            if self.broken is not None:
                return
            if not committed:
                await self.env.sleep(_RETRY_S)
            if self._closing and committed and not self._dirty.is_set():
                return

    async def _commit_once(self, limiter: trio.CapacityLimiter) -> bool:
        """Commit everything marked so far; whether it landed."""
        self._dirty = trio.Event()
        self._hurry = trio.Event()
        lsn = self.lsn
        batch = self._cut(durable=self._sync_lsn > self.lsn_durable or self._closing)
        records, self._records = self._records, []
        fresh, self._fresh_marked = self._fresh_marked, []
        batch.writes.append(("INSERT INTO journal VALUES (?, ?, ?, ?)", records))
        batch.writes.append(("DELETE FROM journal WHERE lsn <= ?", [(lsn - JOURNAL_RECORDS_KEPT,)]))
        try:
            await self.env.run_blocking(self.database.commit, batch, limiter=limiter)
        except apsw.Error as error:
            for table in self._tables:
                table.failed()
            self._records = records + self._records
            self._fresh_marked = fresh + self._fresh_marked
            self._failure_count += 1
            self._dirty.set()
            self._note_failure(error)
            self._announce()
            return False
        for table in self._tables:
            table.landed()
        self._landed_count = self._cut_count
        for parent, position in fresh:
            self._forget_fresh(parent, position)
        self.lsn_committed = lsn
        if batch.durable:
            self.lsn_durable = lsn
        self._announce()
        return True

    def _announce(self) -> None:
        event, self._landed = self._landed, trio.Event()
        event.set()

    def _note_failure(self, error: apsw.Error) -> None:
        if isinstance(error, apsw.FullError):
            log.error("the journal cannot be written, the disk is full: %s", error)
            return
        log.critical("the journal cannot be written: %s; nothing is acknowledged from here on", error)
        self.broken = IntegrityError(
            f"the journal cannot be written: {error}", hint="check the disk of the cache directory, then remount"
        )

    def _cut(self, *, durable: bool) -> Batch:
        batch = Batch(durable=durable)
        self._cut_count += 1
        for table in self._tables:
            upserts, deletes = table.cut()
            batch.writes.append((table.delete_sql, deletes))
            batch.writes.append((table.upsert_sql, upserts))
        counters: list[Values] = [
            ("next_ino", self.next_ino),
            ("next_dentry", self.next_dentry),
            ("next_content", self.next_content),
            ("lsn", self.lsn),
            ("mark", self.mark),
        ]
        batch.writes.append(("INSERT OR REPLACE INTO meta VALUES (?, ?)", counters))
        return batch

    def close_soon(self) -> None:
        """Ask :meth:`run` to commit what there is, durably, and end."""
        self._closing = True
        self._dirty.set()
        self._hurry.set()

    def close(self) -> None:
        """Close the file. Blocks on the disk; :meth:`run` must have ended."""
        self.database.close()
