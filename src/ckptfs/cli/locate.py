"""From a path that a user names to the mount it lies in."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ckptfs.admin import registry
from ckptfs.errors import NotMountedError

if TYPE_CHECKING:
    from ckptfs.admin.registry import MountEntry

LIST_HINT = "'ckptfs status' lists what is mounted."


def mountpoint_of(path: str) -> Path:
    """The mountpoint a user names, symlinks resolved. A mount that hangs is not touched when it is named plainly."""
    plain = Path(os.path.abspath(path))
    return plain if registry.find(plain) is not None else Path(os.path.realpath(path))


def mount_of(path: str) -> MountEntry:
    """The mount that ``path`` lies in.

    Raises:
        NotMountedError: it lies in none of this user's mounts.
    """
    known = registry.entries()
    for candidate in (os.path.abspath(path), os.path.realpath(path)):
        inside = [entry for entry in known if is_inside(candidate, entry.mountpoint)]
        if inside:
            return max(inside, key=lambda entry: len(entry.mountpoint))
    raise NotMountedError(f"not in a ckptfs mount of this user: {path}", hint=LIST_HINT)


def is_inside(path: str, directory: str) -> bool:
    """Whether ``path`` is ``directory`` or lies under it; both absolute, symlinks resolved."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")
