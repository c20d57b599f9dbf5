"""What the bucket holds, as far as known, and which keys may differ from what the namespace wants there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptfs.errors import NamespaceConflictError
from ckptfs.namespace.rows import ObjectRow, Obligation
from ckptfs.types import ContentId, Key, Lsn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckptfs.namespace.rows import TreeMove
    from ckptfs.namespace.state import State
    from ckptfs.objectstore.base import ObjectInfo


def prefix_end(prefix: str) -> str:
    """The first text behind every text that begins with ``prefix``, in UTF-8 order (a prefix here ends in a slash)."""
    assert prefix.endswith("/")
    return prefix[:-1] + "0"


class Bucket:
    """Objects and obligations.

    Args:
        state: the tables.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._changes: dict[Key, int] = {}
        self._change_count = 0
        self._listing_count = 0
        (count,) = state.database.reader.execute("SELECT count(*) FROM obligation").fetchone()
        self.obligation_count: int = count
        """Keys that may differ; what a drain waits for, with :attr:`tree_move_count`."""
        (count,) = state.database.reader.execute("SELECT count(*) FROM tree_move").fetchone()
        self.tree_move_count: int = count
        self.fresh: dict[Key, None] = dict.fromkeys(
            Key(key) for (key,) in state.database.reader.execute("SELECT key FROM obligation ORDER BY lsn LIMIT 100000")
        )
        """Obligations that nobody has taken yet, oldest first: the publisher takes from here."""

    # --- obligations

    def oblige(self, key: Key, lsn: int) -> None:
        """Say that what the namespace wants under ``key`` changed at ``lsn``."""
        obligation = self._state.obligations.get(key)
        if obligation is None:
            self.obligation_count += 1
        self._state.obligations.put(key, Obligation(key, Lsn(lsn)))
        self.fresh[key] = None

    def oblige_known(self, key: Key, lsn: int) -> None:
        """As :meth:`oblige`, for a key that is no longer wanted: nothing to do if the bucket never had it and nobody is putting it."""
        if self._state.objects.get(key) is not None or self._state.obligations.get(key) is not None:
            self.oblige(key, lsn)

    def obligation(self, key: Key) -> Obligation | None:
        """The obligation on ``key``, or ``None``."""
        return self._state.obligations.get(key)

    def fulfil(self, key: Key, lsn: Lsn) -> bool:
        """Remove the obligation on ``key`` unless a mutation after ``lsn`` renewed it; whether it is gone."""
        obligation = self._state.obligations.get(key)
        if obligation is None:
            return True
        if obligation.lsn > lsn:
            self.fresh[key] = None
            return False
        self._state.obligations.remove(key)
        self.obligation_count -= 1
        self.fresh.pop(key, None)
        self._state.touch()
        return True

    def fail(self, key: Key, error: str) -> None:
        """Note what the last attempt on ``key`` met; the obligation stays."""
        obligation = self._state.obligations.get(key)
        if obligation is not None and obligation.error != error:
            obligation.error = error
            self._state.obligations.mark(key)
            self._state.touch()

    def failing(self) -> Iterator[Obligation]:
        """Obligations whose last attempt failed, those that are saved (call ``state.flush`` before for all)."""
        for key, lsn, error in self._state.database.reader.execute(
            "SELECT key, lsn, error FROM obligation WHERE error <> '' ORDER BY lsn LIMIT 1000"
        ):
            yield Obligation(Key(key), Lsn(lsn), error)

    # --- tree moves

    def next_tree_move(self) -> TreeMove | None:
        """The oldest directory rename that is not expanded into obligations yet."""
        oldest: TreeMove | None = None
        for lsn, row in self._state.tree_moves.unsaved():
            if row is not None and (oldest is None or lsn < oldest.lsn):
                oldest = row
        for (lsn,) in self._state.database.reader.execute("SELECT lsn FROM tree_move ORDER BY lsn LIMIT 64").fetchall():
            row = self._state.tree_moves.get(Lsn(lsn))
            if row is not None:
                return row if oldest is None or row.lsn < oldest.lsn else oldest
        return oldest

    def end_tree_move(self, move: TreeMove) -> None:
        """Say that every key that ``move`` concerns is an obligation now."""
        self._state.tree_moves.remove(move.lsn)
        self._state.touch()

    def covering_move(self, key: str) -> bool:
        """Whether a directory rename that is not expanded yet concerns ``key`` (or, if it ends in a slash, keys below it)."""
        for move in self._tree_moves():
            for prefix in (move.old_prefix, move.new_prefix):
                if key.startswith(prefix) or (key.endswith("/") and prefix.startswith(key)):
                    return True
        return False

    def _tree_moves(self) -> Iterator[TreeMove]:
        seen: set[Lsn] = set()
        for lsn, row in self._state.tree_moves.unsaved():
            seen.add(lsn)
            if row is not None:
                yield row
        for lsn, *_ in self._state.database.reader.execute("SELECT lsn FROM tree_move").fetchall():
            row = None if lsn in seen else self._state.tree_moves.get(Lsn(lsn))
            if row is not None:
                yield row

    # --- objects

    def object(self, key: Key) -> ObjectRow | None:
        """What the bucket holds under ``key`` as far as known."""
        return self._state.objects.get(key)

    def holds(self, key: Key, info: ObjectInfo, content: ContentId) -> None:
        """Note that the bucket holds generation ``info`` of ``key``, which is ``content``."""
        self._state.objects.put(key, ObjectRow(key, info.etag, info.size, content))
        self._changed(key)

    def lacks(self, key: Key) -> None:
        """Note that the bucket holds nothing under ``key``."""
        if self._state.objects.get(key) is not None:
            self._state.objects.remove(key)
        self._changed(key)

    def objects_below(self, prefix: str, after: str, limit: int) -> list[Key]:
        """Up to ``limit`` keys of known objects that begin with ``prefix``, behind ``after``. Call ``state.flush`` before: reads what is saved."""
        rows = self._state.database.reader.execute(
            "SELECT key FROM object WHERE key > ? AND key >= ? AND key < ? ORDER BY key LIMIT ?",
            (after, prefix, prefix_end(prefix), limit),
        ).fetchall()
        return [Key(key) for (key,) in rows]

    def obliged_below(self, prefix: str) -> bool:
        """Whether any key that begins with ``prefix`` is an obligation or is concerned by a directory rename."""
        if self.covering_move(prefix):
            return True
        for key, row in self._state.obligations.unsaved():
            if row is not None and key.startswith(prefix):
                return True
        for (key,) in self._state.database.reader.execute(
            "SELECT key FROM obligation WHERE key >= ? AND key < ? LIMIT 1000", (prefix, prefix_end(prefix))
        ).fetchall():
            if self._state.obligations.get(Key(key)) is not None:
                return True
        return False

    # --- changes while a listing is under way

    def _changed(self, key: Key) -> None:
        self._state.touch()
        if self._listing_count:
            self._change_count += 1
            self._changes[key] = self._change_count

    def begin_listing(self) -> int:
        """Begin to remember which keys ckptfs itself changes, since a listing may show them old. Gives a mark."""
        self._listing_count += 1
        return self._change_count

    def end_listing(self) -> None:
        """End what :meth:`begin_listing` began."""
        self._listing_count -= 1
        if not self._listing_count:
            self._changes.clear()

    def changed_since(self, key: str, mark: int) -> bool:
        """Whether ckptfs changed ``key`` (or, if it ends in a slash, any key below it) after ``mark``."""
        if key.endswith("/"):
            return any(change > mark and changed.startswith(key) for changed, change in self._changes.items())
        return self._changes.get(Key(key), 0) > mark

    def expect_object(self, key: Key, etag: str) -> ObjectRow:
        """The known object of ``key``, which must be generation ``etag``.

        Raises:
            NamespaceConflictError: another one, or none, is known now.
        """
        row = self._state.objects.get(key)
        if row is None or row.etag != etag:
            raise NamespaceConflictError(f"{key}: the known object changed meanwhile")
        return row
