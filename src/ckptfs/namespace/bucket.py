"""What the bucket holds, as far as known, and which keys may differ from what the namespace wants there."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

import trio

from ckptfs.errors import NamespaceConflictError
from ckptfs.namespace.rows import ObjectRow, Obligation, UploadRow
from ckptfs.types import ContentId, Key, Lsn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckptfs.namespace.rows import TreeMove
    from ckptfs.namespace.state import State
    from ckptfs.objectstore.base import ObjectInfo


FRESH_MAX = 50_000
"""Obligations that wait in memory for the publisher; more of them are read back from the file when these are taken."""


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
        (count,) = state.database.query("SELECT count(*) FROM obligation")[0]
        self.obligation_count: int = count
        """Keys that may differ; what a drain waits for, with :attr:`tree_move_count`."""
        (count,) = state.database.query("SELECT count(*) FROM tree_move")[0]
        self.tree_move_count: int = count
        self.fresh: OrderedDict[Key, None] = OrderedDict()
        """Obligations that nobody has taken yet, oldest first: the publisher takes from here."""
        self.overflowed = self.obligation_count > 0
        """Whether there are obligations that neither :attr:`fresh` has nor the publisher knows (:meth:`refill`)."""
        self._news = trio.Event()

    # --- obligations

    def oblige(self, key: Key, lsn: int) -> None:
        """Say that what the namespace wants under ``key`` changed at ``lsn``.

        The record of ``lsn`` is made since the last await: the obligation is on disk when the record is.
        """
        obligation = self._state.obligations.get(key)
        if obligation is None:
            self.obligation_count += 1
        self._state.obligations.put(key, Obligation(key, Lsn(lsn), tried=obligation is not None and obligation.tried))
        self._state.touch()
        self.offer(key)

    def offer(self, key: Key) -> None:
        """Put an obliged key where the publisher takes from."""
        if len(self.fresh) < FRESH_MAX:
            self.fresh[key] = None
        elif key not in self.fresh:
            self.overflowed = True
        self._news.set()

    def refill(self, after: tuple[int, str], limit: int) -> tuple[int, str] | None:
        """Put up to ``limit`` saved obligations behind position ``after`` into :attr:`fresh`.

        Gives the position of the last one, ``None`` at the end. Call ``state.flush`` before: reads what is saved.
        """
        rows = self._state.database.query(
            "SELECT lsn, key FROM obligation WHERE (lsn, key) > (?, ?) ORDER BY lsn, key LIMIT ?", (*after, limit)
        )
        for _, key in rows:
            if self._state.obligations.get(Key(key)) is not None:
                self.fresh[Key(key)] = None
        return (rows[-1][0], rows[-1][1]) if len(rows) == limit else None

    async def news(self) -> None:
        """Return when anything happened to an obligation or a tree move since the last call returned.

        For one caller.
        """
        await self._news.wait()
        self._news = trio.Event()

    def try_begun(self, key: Key) -> None:
        """Note that an attempt begins that may change the object of ``key``.

        Until it is settled, what is there is not known.
        """
        obligation = self._state.obligations.get(key)
        if obligation is not None and not obligation.tried:
            obligation.tried = True
            self._state.obligations.mark(key)

    def try_settled(self, key: Key) -> None:
        """Note that what the bucket holds under ``key`` is known again."""
        obligation = self._state.obligations.get(key)
        if obligation is not None and obligation.tried:
            obligation.tried = False
            self._state.obligations.mark(key)

    def oblige_known(self, key: Key, lsn: int) -> None:
        """As :meth:`oblige`, for a key that is no longer wanted.

        Nothing to do if the bucket never had it and nobody is putting it.
        """
        if self._state.objects.get(key) is not None or self._state.obligations.get(key) is not None:
            self.oblige(key, lsn)

    def obligation(self, key: Key) -> Obligation | None:
        """The obligation on ``key``, or ``None``."""
        return self._state.obligations.get(key)

    def obliged(self, after: Key, limit: int) -> list[Obligation]:
        """Up to ``limit`` obligations on keys behind ``after``, those that are saved."""
        rows = self._state.database.query(
            "SELECT key FROM obligation WHERE key > ? ORDER BY key LIMIT ?", (after, limit)
        )
        found = [(Key(key), self._state.obligations.get(Key(key))) for (key,) in rows]
        return [Obligation(key, Lsn(0)) if row is None else row for key, row in found]

    def fulfil(self, key: Key, lsn: Lsn) -> bool:
        """Remove the obligation on ``key`` unless a mutation after ``lsn`` renewed it; whether it is gone."""
        obligation = self._state.obligations.get(key)
        if obligation is None:
            return True
        if obligation.lsn > lsn:
            self.offer(key)
            return False
        self._state.obligations.remove(key)
        self.obligation_count -= 1
        self.fresh.pop(key, None)
        self._state.touch()
        self._news.set()
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
        for key, lsn, error in self._state.database.query(
            "SELECT key, lsn, error FROM obligation WHERE error <> '' ORDER BY lsn LIMIT 1000"
        ):
            yield Obligation(Key(key), Lsn(lsn), error)

    def oldest_ns(self) -> int | None:
        """When the oldest mutation was made that still obliges, ns since the epoch, as saved; ``None`` without one."""
        rows = self._state.database.query(
            "SELECT wall_ns FROM journal WHERE lsn >= (SELECT min(lsn) FROM obligation) ORDER BY lsn LIMIT 1"
        )
        return rows[0][0] if rows else None

    # --- multipart uploads

    def upload_begun(self, upload_id: str, key: Key) -> None:
        """Note a multipart upload, so that a later start can abort it."""
        self._state.uploads.put(upload_id, UploadRow(upload_id, key))
        self._state.touch()

    def upload_ended(self, upload_id: str) -> None:
        """Note that a multipart upload was completed or aborted."""
        self._state.uploads.remove(upload_id)
        self._state.touch()

    def uploads(self) -> list[UploadRow]:
        """Multipart uploads that were begun and not ended, as saved."""
        rows = self._state.database.query("SELECT upload_id, key FROM upload")
        return [UploadRow(upload_id, Key(key)) for upload_id, key in rows]

    def published_lsn(self) -> Lsn:
        """Up to which mutation the bucket has everything, as saved: what came later may be there in part."""
        ((oldest,),) = self._state.database.query(
            "SELECT min(lsn) FROM (SELECT min(lsn) AS lsn FROM obligation UNION ALL SELECT min(lsn) FROM tree_move)"
        )
        return self._state.lsn_committed if oldest is None else Lsn(min(oldest - 1, self._state.lsn_committed))

    # --- tree moves

    def begin_tree_move(self, move: TreeMove) -> None:
        """Say that a directory was renamed, with all that is below it."""
        self._state.tree_moves.put(move.lsn, move)
        self.tree_move_count += 1
        self._news.set()

    def next_tree_move(self) -> TreeMove | None:
        """The oldest directory rename that is not expanded into obligations yet."""
        oldest: TreeMove | None = None
        for lsn, row in self._state.tree_moves.unsaved():
            if row is not None and (oldest is None or lsn < oldest.lsn):
                oldest = row
        for (lsn,) in self._state.database.query("SELECT lsn FROM tree_move ORDER BY lsn LIMIT 64"):
            row = self._state.tree_moves.get(Lsn(lsn))
            if row is not None:
                return row if oldest is None or row.lsn < oldest.lsn else oldest
        return oldest

    def end_tree_move(self, move: TreeMove) -> None:
        """Say that every key that ``move`` concerns is an obligation now."""
        self._state.tree_moves.remove(move.lsn)
        self.tree_move_count -= 1
        self._state.touch()
        self._news.set()

    def moved_on(self, key: Key, lsn: Lsn) -> Key:
        """Where ``key`` is after the directory renames that came after ``lsn``, none of which is expanded yet."""
        for move in sorted(self._tree_moves(), key=lambda move: move.lsn):
            if move.lsn > lsn and key.startswith(move.old_prefix):
                key = Key(move.new_prefix + key[len(move.old_prefix) :])
        return key

    def covering_move(self, key: str) -> bool:
        """Whether a directory rename not yet expanded concerns ``key`` (keys below it, if it ends in a slash)."""
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
        for lsn, *_ in self._state.database.query("SELECT lsn FROM tree_move"):
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

    def holders(self, content: ContentId) -> list[Key]:
        """Every key whose object is known to hold ``content``.

        Looks at all objects: for when no other way finds one.
        """
        saved = self._state.database.query("SELECT key FROM object WHERE content = ?", (content,))
        keys = {Key(key) for (key,) in saved} | {key for key, _ in self._state.objects.unsaved()}
        found = []
        for key in sorted(keys):
            row = self._state.objects.get(key)
            if row is not None and row.content == content:
                found.append(key)
        return found

    def objects_below(self, prefix: str, after: str, limit: int) -> list[Key]:
        """Up to ``limit`` keys of known objects that begin with ``prefix``, behind ``after``.

        Call ``state.flush`` before: reads what is saved.
        """
        rows = self._state.database.query(
            "SELECT key FROM object WHERE key > ? AND key >= ? AND key < ? ORDER BY key LIMIT ?",
            (after, prefix, prefix_end(prefix), limit),
        )
        return [Key(key) for (key,) in rows]

    def obliged_below(self, prefix: str) -> bool:
        """Whether any key that begins with ``prefix`` is an obligation or is concerned by a directory rename."""
        if self.covering_move(prefix):
            return True
        for key, row in self._state.obligations.unsaved():
            if row is not None and key.startswith(prefix):
                return True
        for (key,) in self._state.database.query(
            "SELECT key FROM obligation WHERE key >= ? AND key < ? LIMIT 1000", (prefix, prefix_end(prefix))
        ):
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
