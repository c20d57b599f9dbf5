"""Tables whose live state is in memory and is written behind it, one transaction for many operations.

A mutation is a plain function: it changes rows in memory, marks them, and returns. The commit loop takes all marks at
once (a *batch*: the final values of every marked row), writes them in one transaction on a thread, and only then may a
row leave memory. So a read never waits for a write, operations that come together share one commit, and what is on
disk is always the state between two whole operations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    import apsw

    from ckptfs.namespace.rows import Values

K = TypeVar("K", bound="Hashable")

_KEY_NAMES = {
    "dentry": ("parent", "name"),
    "content": ("id",),
    "object": ("key",),
    "obligation": ("key",),
    "upload": ("upload_id",),
    "tree_move": ("lsn",),
}


class Row(Protocol):
    """What every row can do."""

    def values(self) -> Values:
        """Its columns, in the table's order."""


R = TypeVar("R", bound=Row)


class Table(Generic[K, R]):
    """One table: a map from key to row.

    A row that :meth:`get` gave may be changed in place if :meth:`mark` is called before the next await; it must not
    be held over an await, since a row without marks may leave memory and come back as another value.

    Args:
        name: of the table in the schema.
        columns: how many there are; the first ``key_columns`` are the primary key.
        decode: makes a row from its columns.
        rows_max: how many rows without marks may stay in memory.
    """

    def __init__(
        self, name: str, columns: int, decode: Callable[..., R], *, key_columns: int = 1, rows_max: int = 20_000
    ) -> None:
        self.name = name
        self._decode = decode
        self._key_columns = key_columns
        self._rows_max = rows_max
        self._live: dict[K, R | None] = {}
        self._marked: dict[K, None] = {}
        self._in_flight: dict[K, None] = {}
        self._reader: apsw.Connection | None = None
        key_names = _KEY_NAMES.get(name, ("ino",))
        where = " AND ".join(f"{column} = ?" for column in key_names)
        self._select = f"SELECT * FROM {name} WHERE {where}"  # noqa: S608 - names are ours
        self.upsert_sql = f"INSERT OR REPLACE INTO {name} VALUES ({', '.join('?' * columns)})"  # noqa: S608 - ours
        self.delete_sql = f"DELETE FROM {name} WHERE {where}"  # noqa: S608 - names are ours

    def attach(self, reader: apsw.Connection) -> None:
        """Read missing rows from ``reader`` from now on."""
        self._reader = reader

    @property
    def marked_count(self) -> int:
        """Rows that the next batch will write."""
        return len(self._marked)

    def get(self, key: K) -> R | None:
        """The row, or ``None`` when there is none."""
        try:
            return self._live[key]
        except KeyError:
            pass
        assert self._reader is not None
        found = self._reader.execute(self._select, key if isinstance(key, tuple) else (key,)).fetchone()
        row = None if found is None else self._decode(*found)
        if len(self._live) >= self._rows_max:
            self._shrink()
        self._live[key] = row
        return row

    def peek(self, key: K) -> tuple[bool, R | None]:
        """Whether memory knows the key, and its row if so; never reads the disk."""
        if key in self._live:
            return True, self._live[key]
        return False, None

    def put(self, key: K, row: R) -> None:
        """Set the row of ``key``."""
        self._live[key] = row
        self._marked[key] = None

    def mark(self, key: K) -> None:
        """Say that the row of ``key`` was changed in place."""
        assert self._live.get(key) is not None, f"{self.name} {key!r} is not in memory"
        self._marked[key] = None

    def remove(self, key: K) -> None:
        """Remove the row of ``key``; it need not exist."""
        self._live[key] = None
        self._marked[key] = None

    def unsaved(self) -> Iterator[tuple[K, R | None]]:
        """Keys whose newest row is not known to be on disk yet."""
        for key in {**self._in_flight, **self._marked}:
            yield key, self._live[key]

    def cut(self) -> tuple[list[Values], list[tuple[object, ...]]]:
        """Take all marks: values to write and keys to delete. They stay in memory until :meth:`landed`."""
        assert not self._in_flight, "one batch at a time"
        self._in_flight, self._marked = self._marked, {}
        upserts: list[Values] = []
        deletes: list[tuple[object, ...]] = []
        for key in self._in_flight:
            row = self._live[key]
            if row is None:
                deletes.append(key if isinstance(key, tuple) else (key,))
            else:
                upserts.append(row.values())
        return upserts, deletes

    def landed(self) -> None:
        """The batch of the last :meth:`cut` is committed."""
        self._in_flight = {}
        if len(self._live) > self._rows_max:
            self._shrink()

    def failed(self) -> None:
        """The batch of the last :meth:`cut` is not committed: mark its rows again."""
        self._marked = {**self._in_flight, **self._marked}
        self._in_flight = {}

    def _shrink(self) -> None:
        """Let the older half of the rows without marks go."""
        surplus = len(self._live) - self._rows_max // 2
        for key in list(self._live):
            if surplus <= 0:
                return
            if key not in self._marked and key not in self._in_flight:
                del self._live[key]
                surplus -= 1
