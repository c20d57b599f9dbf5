"""Start-up: what the last life left in the journal and in staging, brought to a state that can be mounted.

Truth table. A content's row says ``state`` and ``place``; the inode that it names may be committed to it or not.

===  ==========================  ===========  ===============  ========================================
row  state                       committed    bytes here       what is done
===  ==========================  ===========  ===============  ========================================
R1   any                         inode gone   –                dropped
R2   OPEN                        yes          yes              TORN: nobody closed it; not published
R3   OPEN                        no, to none  some             TORN, and committed: the bytes stay here
R4   OPEN                        no, to none  none             dropped; the file is empty
R5   OPEN                        no, to other –                dropped: the older content stays
R6   SEALED … PUBLISHING         yes          whole            DURABLE if PUBLISHING; obliged again
R7   SEALED … PUBLISHING         yes          missing, short   FAULTY
R8   SEALED … PUBLISHING         no           –                dropped: a newer one was committed
R9   PUBLISHED                   yes          whole            clean cache, kept
R10  PUBLISHED                   yes          missing, short   RECLAIMED: the bucket has it
R11  RECLAIMED, TORN, FAULTY     yes          –                kept
R12  PUBLISHED … FAULTY          no           –                dropped
===  ==========================  ===========  ===============  ========================================

Staging files: one whose content has no row is removed when its number was given out in a committed transaction (the
row was dropped since), and otherwise moved to ``lost/`` (nothing was ever promised about it). Inodes without names
are removed.
"""

from __future__ import annotations

import logging
import os
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ckptfs.namespace.contents import UNPUBLISHED
from ckptfs.namespace.rows import PLACE_FILE, PLACE_INLINE, PLACE_NONE
from ckptfs.types import NO_CONTENT, ContentId, ContentState, Ino

if TYPE_CHECKING:
    from pathlib import Path

    from ckptfs.namespace import Namespace
    from ckptfs.namespace.rows import Content, Inode
    from ckptfs.staging import Staging

log = logging.getLogger(__name__)

_S = ContentState


@dataclass(slots=True)
class Report:
    """What a recovery did, for the log and for status: counts, and paths of the files that are not whole."""

    orphans: int = 0
    dropped: int = 0
    torn: list[str] = field(default_factory=list)
    faulty: list[str] = field(default_factory=list)
    obliged: int = 0
    lost_files: int = 0


def recover(namespace: Namespace, staging: Staging, lost: Path) -> Report:
    """Bring what the last life left to a state that can be mounted. Blocks; before anything else runs on the namespace.

    Idempotent: all changes of the namespace are committed later in whole operations, and doing this again from any
    prefix of them ends the same.

    Args:
        namespace: just opened.
        staging: files of contents.
        lost: directory for files that nothing is known of.
    """
    report = Report()
    committed_contents = namespace.state.next_content
    state = namespace.state
    for (ino,) in state.database.query("SELECT ino FROM inode WHERE nlink = 0"):
        content = namespace.tree.inode(Ino(ino)).content
        namespace.tree.reap(Ino(ino))
        report.orphans += 1
        _drop(namespace, content)
    for (number,) in state.database.query("SELECT id FROM content WHERE state <> 'reclaimed'"):
        content_row = namespace.contents.get(ContentId(number))
        if content_row is not None:
            _settle(namespace, staging, content_row, report)
    _sweep(namespace, staging, lost, committed_contents, report)
    if report.torn or report.faulty or report.obliged or report.lost_files:
        log.info(
            "recovered: %d contents to publish, %d torn, %d faulty, %d unknown staging files moved to %s",
            report.obliged,
            len(report.torn),
            len(report.faulty),
            report.lost_files,
            lost,
        )
    return report


def _drop(namespace: Namespace, content: ContentId) -> None:
    """Drop a content unless its owner is an inode that is committed to it."""
    row = namespace.contents.get(content)
    if row is None:
        return
    owner = namespace.state.inodes.get(row.ino)
    if owner is None or owner.content != content:
        namespace.contents.drop(content)


def _bytes_here(staging: Staging, content: Content) -> int | None:
    """How many bytes of the content this node has; ``None`` for none at all."""
    if content.place == PLACE_INLINE:
        return None if content.data is None else len(content.data)
    if content.place == PLACE_NONE:
        return None
    try:
        return os.stat(staging.path(content.id)).st_size
    except FileNotFoundError:
        return None


def _settle(namespace: Namespace, staging: Staging, content: Content, report: Report) -> None:
    """Apply the row of the table that fits ``content``."""
    inode = namespace.state.inodes.get(content.ino)
    if inode is None:  # R1
        namespace.contents.drop(content.id)
        report.dropped += 1
    elif content.state is _S.OPEN:
        _settle_open(namespace, staging, content, inode, report)
    elif inode.content != content.id:  # R8, R12
        namespace.contents.drop(content.id)
        report.dropped += 1
    elif content.state in UNPUBLISHED:
        _settle_unpublished(namespace, staging, content, inode, report)
    elif content.state is _S.PUBLISHED and _bytes_here(staging, content) != content.size:  # R10
        content.place, content.data = PLACE_NONE, None
        namespace.contents.move(content, _S.RECLAIMED)


def _settle_open(namespace: Namespace, staging: Staging, content: Content, inode: Inode, report: Report) -> None:
    have = _bytes_here(staging, content)
    if inode.content == content.id:  # R2
        content.size = content.size if have is None else have
        _mark_torn(namespace, content, inode, report)
    elif inode.content == NO_CONTENT and have is not None:  # R3
        content.size = have
        namespace.contents.commit(inode, content.id)
        _mark_torn(namespace, content, inode, report)
    else:  # R4, R5
        namespace.contents.drop(content.id)
        report.dropped += 1


def _mark_torn(namespace: Namespace, content: Content, inode: Inode, report: Report) -> None:
    inode.size = inode.allocated = content.size
    namespace.state.inodes.mark(inode.ino)
    namespace.contents.move(content, _S.TORN)
    report.torn.extend(_paths(namespace, inode))


def _settle_unpublished(namespace: Namespace, staging: Staging, content: Content, inode: Inode, report: Report) -> None:
    have = _bytes_here(staging, content)
    if have is None or have < content.size:  # R7
        content.error = "bytes are missing in staging after a restart"
        namespace.contents.move(content, _S.FAULTY)
        report.faulty.extend(_paths(namespace, inode))
        log.critical("content %s of %s: %s", content.id, _paths(namespace, inode), content.error)
        return
    if content.state is _S.PUBLISHING:
        namespace.contents.move(content, _S.DURABLE)
    namespace.contents.oblige(inode)  # R6
    report.obliged += 1


def _paths(namespace: Namespace, inode: Inode) -> list[str]:
    keys = [namespace.tree.key_of(parent, name) for parent, name in namespace.tree.names_of(inode)]
    return [key for key in keys if key is not None]


def _sweep(namespace: Namespace, staging: Staging, lost: Path, committed_contents: int, report: Report) -> None:
    """Staging files that no content needs."""
    for number in staging.contents():
        content = namespace.contents.get(number)
        if content is not None and content.place == PLACE_FILE:
            continue
        path = staging.path(number)
        if number < committed_contents:
            path.unlink()
            continue
        if stat.S_ISREG(path.lstat().st_mode):
            lost.mkdir(exist_ok=True)
            path.rename(lost / f"{number}.{report.lost_files}")
            report.lost_files += 1
            # The number must not be given out again while a file of it may lie in lost/.
            namespace.state.next_content = max(namespace.state.next_content, number + 1)
            namespace.state.touch()
