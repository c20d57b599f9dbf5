"""A renamed directory becomes obligations on the keys below its old and its new prefix, piece by piece."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from ckptfs.namespace.paths import join
from ckptfs.publish.view import find
from ckptfs.types import Key

if TYPE_CHECKING:
    from ckptfs.namespace import Namespace
    from ckptfs.namespace.rows import TreeMove
    from ckptfs.types import Ino


async def expand(namespace: Namespace, move: TreeMove, *, chunk: int) -> None:
    """Oblige every key that a directory rename concerns, then forget the rename.

    What comes below the old prefix meanwhile is an obligation by itself, and so is what moves within the walked tree.
    Run again after a crash, it begins again: an obligation more does no harm. Memory is bounded by ``chunk`` for each
    level of the tree.

    Args:
        namespace: the tree and the obligations.
        move: the rename.
        chunk: keys between two waits.
    """
    bucket, state = namespace.bucket, namespace.state
    await state.flush()
    after = ""
    while keys := bucket.objects_below(move.old_prefix, after, chunk):
        lsn = state.record("expand", move=move.lsn, after=after)
        for key in keys:
            bucket.oblige(key, lsn)
            if key.endswith("/"):
                moved = Key(move.new_prefix + key[len(move.old_prefix) :])
                bucket.oblige(bucket.moved_on(moved, move.lsn), lsn)
        after = keys[-1]
        await state.flush()
    directory = find(namespace, Key(move.new_prefix[:-1]))
    if directory is not None and directory.is_dir:
        await _oblige_below(namespace, directory.ino, chunk=chunk)
    bucket.end_tree_move(move)
    await trio.lowlevel.checkpoint()


async def _oblige_below(namespace: Namespace, top: Ino, *, chunk: int) -> None:
    tree, bucket, state = namespace.tree, namespace.bucket, namespace.state
    stack: list[tuple[Ino, int]] = [(top, 0)]
    count = 0
    while stack:
        directory, after = stack.pop()
        prefix = tree.prefix_of(directory)
        entries = [] if prefix is None else tree.readdir(directory, after, chunk)
        if not entries or prefix is None:
            continue
        stack.append((directory, entries[-1][0]))
        lsn = state.record("expand", directory=directory, after=after)
        for _, name, inode in entries:
            if inode.is_dir:
                stack.append((inode.ino, 0))
            elif inode.is_file:
                bucket.oblige(join(prefix, name), lsn)
        count += len(entries)
        if count >= chunk:
            count = 0
            await state.flush()
        else:
            await trio.lowlevel.checkpoint()
