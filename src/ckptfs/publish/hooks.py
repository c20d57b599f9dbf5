"""What the publisher asks of parts that stand beside or above it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ckptfs.objectstore.base import ObjectInfo
    from ckptfs.types import ContentId, Ino, Lsn


@dataclass(slots=True)
class Hooks:
    """Callbacks.

    Attributes:
        materialize: bring a content that only the bucket has into staging.
        adopt: show an object as a file under a name that is free now, and note the object as known.
        in_use: whether a handle reads a content.
        name_changed: a name leads elsewhere now, and no call of the kernel made it so.
        is_busy: whether somebody is at work on the mount right now.
    """

    materialize: Callable[[ContentId], Awaitable[None]]
    adopt: Callable[[Ino, bytes, ObjectInfo], object]
    in_use: Callable[[ContentId], bool] = field(default=lambda _content: False)
    name_changed: Callable[[Ino, bytes], None] = field(default=lambda _parent, _name: None)
    is_busy: Callable[[], bool] = field(default=lambda: False)


@dataclass(frozen=True, slots=True)
class Conflict:
    """An object that changed behind the mount's back while the mount was about to change it; the object stood.

    Attributes:
        key: of the object.
        kept_as: key of this mount's content; empty when there was none to keep (the mount was deleting).
        lsn: when.
    """

    key: str
    kept_as: str
    lsn: Lsn
