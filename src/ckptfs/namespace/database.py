"""The SQLite file: one connection that reads on the event loop's thread, one that writes on a worker thread.

Reads are plain calls: they touch pages that SQLite or the kernel holds in memory, and in WAL mode no writer ever
makes them wait. Whatever may wait for the disk (a commit, its sync, a checkpoint) is in :meth:`Database.commit`,
which runs on a thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import apsw

from ckptfs.errors import IntegrityError, UsageError
from ckptfs.namespace.schema import SCHEMA, SCHEMA_VERSION

if TYPE_CHECKING:
    from pathlib import Path

    from ckptfs.namespace.rows import Values

CHECKPOINT_PAGES = 4096
"""WAL size from which a commit moves the WAL into the file: 16 MiB of pages."""

READ_CACHE_KIB = 16 * 1024


@dataclass(slots=True)
class Batch:
    """What one transaction writes.

    Attributes:
        writes: for each statement the rows it is run with, in order.
        durable: sync it to the disk before it counts (``synchronous=FULL``).
    """

    writes: list[tuple[str, list[Values]]] = field(default_factory=list)
    durable: bool = False


class Database:
    """The namespace's SQLite file.

    Args:
        path: of the file; made when missing.

    Raises:
        UsageError: the file was made by another version of the schema.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._open(path)
        except (apsw.NotADBError, apsw.CorruptError) as error:
            raise IntegrityError(
                f"{path}: the journal is damaged: {error}",
                hint="keep the cache directory for repair and mount with another --cache-dir: what was published is in"
                " the bucket",
            ) from error

    def _open(self, path: Path) -> None:
        self._writer = apsw.Connection(str(path))
        self._writer.set_busy_timeout(10_000)
        self._writer.execute("PRAGMA journal_mode=WAL").fetchall()
        self._writer.execute("PRAGMA wal_autocheckpoint=0").fetchall()
        self._writer.execute("PRAGMA synchronous=FULL").fetchall()
        self._durable = True
        self._wal_pages = 0
        self._writer.set_wal_hook(self._count_wal_pages)
        ((version,),) = self._writer.execute("PRAGMA user_version").fetchall()
        if version not in (0, SCHEMA_VERSION):
            raise UsageError(
                f"{path}: the journal has format {version}, this version of ckptfs reads {SCHEMA_VERSION}",
                hint="mount it with the version that made it and drain it, or use another --cache-dir",
            )
        with self._writer:
            self._writer.execute(SCHEMA)
            self._writer.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
        self.reader = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        self.reader.set_busy_timeout(1_000)
        self.reader.execute(f"PRAGMA cache_size=-{READ_CACHE_KIB}").fetchall()

    def query(self, sql: str, arguments: Values = ()) -> list[Values]:
        """Rows of what is committed. Plain: bound what you ask for."""
        return self.reader.execute(sql, arguments).fetchall()

    def commit(self, batch: Batch) -> None:
        """Write ``batch`` in one transaction. Blocks on the disk: run it on a thread, one call at a time."""
        if batch.durable != self._durable:
            self._writer.execute(f"PRAGMA synchronous={'FULL' if batch.durable else 'NORMAL'}")
            self._durable = batch.durable
        with self._writer:
            for sql, rows in batch.writes:
                if rows:
                    self._writer.executemany(sql, rows)

        if self._wal_pages >= CHECKPOINT_PAGES:
            self._writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)

    def _count_wal_pages(self, _connection: apsw.Connection, _name: str, pages: int) -> int:
        self._wal_pages = pages
        return apsw.SQLITE_OK

    def close(self) -> None:
        """Close both connections; the last one moves the WAL into the file."""
        self.reader.close()
        self._writer.execute("PRAGMA synchronous=FULL")
        self._writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        self._writer.close()
