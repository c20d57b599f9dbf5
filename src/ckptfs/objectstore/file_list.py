"""Listing of a directory tree in UTF-8 order of full keys, page by page, in bounded memory.

The order of keys is not the order of a tree walk by name: ``a-b`` comes before ``a/c`` because ``-`` < ``/``. Sorting
each directory by name *with a slash after directories* makes a depth-first walk come out in key order.

A directory is read in windows of the next :data:`WINDOW_NAMES` names after the last one, so that neither memory nor the
cost of a page grows with the directory; the walk is kept between pages, and a page that finds its walk gone seeks to
its place.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptfs.objectstore.base import ObjectInfo
from ckptfs.objectstore.file_io import OWN_COMPONENTS, components_of
from ckptfs.objectstore.file_meta import etag_of
from ckptfs.types import Key

if TYPE_CHECKING:
    from collections.abc import Iterator

WINDOW_NAMES = 262_144
"""Names of one directory held at a time (up to twice as many while they are read)."""

WALKS_KEPT_MAX = 4
"""Listings that continue without a seek; more at a time still work, each page then reads its directories again."""

_OWN_PREFIX = b"/".join(OWN_COMPONENTS) + b"/"
_GONE = {errno.ENOENT, errno.ENOTDIR}


@dataclass(frozen=True, slots=True)
class Found:
    """An entry of the walk: an object with the status of its file, or a common prefix (``status`` is ``None``)."""

    key: bytes
    status: os.stat_result | None

    def info(self) -> ObjectInfo:
        """As reported in a page."""
        assert self.status is not None, "a prefix has no info"
        return object_info(Key(os.fsdecode(self.key)), self.status)


def object_info(key: Key, status: os.stat_result) -> ObjectInfo:
    """What ``status`` says of ``key``, without its metadata."""
    return ObjectInfo(key, status.st_size, etag_of(status), status.st_mtime_ns)


@dataclass(slots=True)
class _Frame:
    """One directory of the walk: what is left of its present window.

    Attributes:
        prefix: key prefix of the directory, empty or ending in a slash.
        starts: only names that start so are of interest.
        after: names up to this one are done (directories with their slash).
        names: the window, sorted; ``None`` before the first was read.
        position: next of ``names``.
        more: the directory has names beyond the window.
    """

    prefix: bytes
    starts: bytes = b""
    after: bytes = b""
    names: list[bytes] | None = None
    position: int = 0
    more: bool = True

    def next_name(self, root: bytes) -> bytes | None:
        if self.names is None or self.position == len(self.names):
            if not self.more:
                return None
            self._read_window(root)
            assert self.names is not None
            if not self.names:
                return None
        self.after = self.names[self.position]
        self.position += 1
        return self.after

    def _read_window(self, root: bytes) -> None:
        names: list[bytes] = []
        self.more = False
        bound: bytes | None = None
        for name in _scan(root + b"/" + self.prefix):
            if name <= self.after or not name.startswith(self.starts) or (bound is not None and name > bound):
                continue
            names.append(name)
            if len(names) == 2 * WINDOW_NAMES:
                names.sort()
                del names[WINDOW_NAMES:]
                bound = names[-1]
                self.more = True
        names.sort()
        if len(names) > WINDOW_NAMES:
            del names[WINDOW_NAMES:]
            self.more = True
        self.names = names
        self.position = 0


class Walk:
    """Objects (and with a delimiter common prefixes) under ``prefix`` after ``after``, in order."""

    def __init__(self, root: str, prefix: bytes, *, delimiter: bool, after: bytes = b"") -> None:
        self._root = os.fsencode(root)
        self._delimiter = delimiter
        self._ahead: Found | None = None
        self._is_checked = False
        base, slash, starts = prefix.rpartition(b"/")
        first = _Frame(base + slash, starts)
        self._stack = [first]
        rest = after[len(first.prefix) :]
        while rest:
            # A page ended at this key: begin after its ancestor here, and in that ancestor after the next one.
            name, slash, rest = rest.partition(b"/")
            top = self._stack[-1]
            top.after = name + slash
            if rest:
                self._stack.append(_Frame(top.prefix + top.after))

    def page(self, limit: int) -> tuple[list[Found], bool]:
        """The next entries, at most ``limit``, and whether there are more. Blocks on the disk."""
        found: list[Found] = []
        while (entry := self._ahead or self._advance()) is not None:
            self._ahead = None
            if len(found) == limit:
                self._ahead = entry
                return found, True
            found.append(entry)
        return found, False

    def _advance(self) -> Found | None:
        if not self._is_checked:
            self._is_checked = True
            if not _is_reachable(self._root, self._stack[0].prefix):
                self._stack.clear()
        while self._stack:
            frame = self._stack[-1]
            name = frame.next_name(self._root)
            if name is None:
                self._stack.pop()
                continue
            key = frame.prefix + name
            if key == _OWN_PREFIX:
                continue
            if not name.endswith(b"/"):
                status = stat_file(self._root, key)
                if status is not None:
                    return Found(key, status)
            elif not self._delimiter:
                self._stack.append(_Frame(key))
            elif _has_object(self._root, key):
                return Found(key, None)
        return None


class Lister:
    """The walks of one tree that stopped at the end of a page. Used on the event loop only; does no I/O."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._walks: OrderedDict[str, Walk] = OrderedDict()
        self._walk_count = 0

    def walk(self, prefix: str, delimiter: str, token: str | None) -> Walk:
        """The walk that stopped at ``token``, or a new one that will seek there."""
        kept = self._walks.pop(token, None) if token is not None else None
        if kept is not None:
            return kept
        after = bytes.fromhex(token.partition(".")[0]) if token is not None else b""
        return Walk(self._root, os.fsencode(prefix), delimiter=bool(delimiter), after=after)

    def keep(self, walk: Walk, last: bytes) -> str:
        """Remember that ``walk`` stopped after the key ``last``; the token to continue with."""
        self._walk_count += 1
        token = f"{last.hex()}.{self._walk_count}"
        self._walks[token] = walk
        if len(self._walks) > WALKS_KEPT_MAX:
            self._walks.popitem(last=False)
        return token


def stat_file(root: bytes, key: bytes) -> os.stat_result | None:
    """Status of the regular file of ``key``; ``None`` if there is none (any more)."""
    try:
        status = os.stat(root + b"/" + key, follow_symlinks=False)
    except OSError as e:
        if e.errno in _GONE:
            return None
        raise
    return status if stat.S_ISREG(status.st_mode) else None


def _is_reachable(root: bytes, prefix: bytes) -> bool:
    """Whether ``prefix`` (empty or ending in a slash) is a possible path and goes through no symlink."""
    if not prefix:
        return True
    components = components_of(os.fsdecode(prefix[:-1]))
    if components is None:
        return False
    path = root
    for component in components:
        path += b"/" + component
        try:
            if not stat.S_ISDIR(os.lstat(path).st_mode):
                return False
        except OSError as e:
            if e.errno in _GONE:
                return False
            raise
    return True


def _scan(path: bytes) -> Iterator[bytes]:
    """Names of the files and, with a slash, of the directories in ``path``.

    None when it is not a directory (any more).
    """
    try:
        entries = os.scandir(path)
    except OSError as e:
        if e.errno in _GONE:
            return
        raise
    with entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield entry.name + b"/"
            elif entry.is_file(follow_symlinks=False):
                yield entry.name


def _has_object(root: bytes, prefix: bytes) -> bool:
    """Whether there is a file at any depth under ``prefix``.

    A directory tree without files is no prefix of anything.
    """
    pending = [prefix]
    while pending:
        directory = pending.pop()
        for name in _scan(root + b"/" + directory):
            key = directory + name
            if not name.endswith(b"/"):
                return True
            if key != _OWN_PREFIX:
                pending.append(key)
    return False
