"""Words of the project as types: numbers that must not be mixed, states, and the values that layers hand each other."""

from __future__ import annotations

import enum
from typing import NewType

Ino = NewType("Ino", int)
"""Inode number. Never reused in the life of a cache directory. The root is :data:`ROOT_INO`."""

ContentId = NewType("ContentId", int)
"""Number of one immutable generation of a file's bytes.

Never reused. 0 is the empty content that every file begins with.
"""

Lsn = NewType("Lsn", int)
"""Position in the journal: one total order over every mutation of the namespace."""

Key = NewType("Key", str)
"""Full key of an object in the bucket, without the mount's prefix. Never begins with a slash."""

ETag = NewType("ETag", str)
"""Opaque name of one generation of an object, as the store gives it (quotes stripped)."""

ROOT_INO = Ino(1)
NO_CONTENT = ContentId(0)

RESERVED_PREFIX = ".ckptfs/"
"""Where ckptfs keeps what is its own in the bucket; the mount hides it."""


class ContentState(enum.StrEnum):
    """State of a content; see docs/architecture.md for who moves it where.

    The order of definition is the order of life; the last two are side states.
    """

    OPEN = "open"
    SEALED = "sealed"
    DURABLE = "durable"
    REPLICATED = "replicated"
    PUBLISHING = "publishing"
    PUBLISHED = "published"
    RECLAIMED = "reclaimed"
    TORN = "torn"
    FAULTY = "faulty"


class CloseMode(enum.StrEnum):
    """What a successful close(2) of a written file promises (``--close``)."""

    SYNC = "sync"
    ASYNC = "async"
