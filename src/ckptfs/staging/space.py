"""Space for new bytes: admitted before it is taken, so that the journal never meets a full disk because of them.

Two reserves. *Admission* keeps :func:`reserve_bytes` of the disk free of file data: what remains is for the journal,
which must be able to record that bytes were removed or published. The *reserve file* gives some room back when others
have filled the disk to the last byte: a full cache directory still mounts and drains.
"""

from __future__ import annotations

import errno
import os
import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from ckptfs.disk.base import Disk

BUDGET_BYTES_MAX = 64 << 20
"""Bytes admitted between two looks at the disk: so much of the reserve others may take unnoticed."""

RESERVE_BYTES_MIN = 16 << 20
RESERVE_BYTES_MAX = 256 << 20
RESERVE_FRACTION = 64
"""The reserve is this part of the disk, within the bounds."""

RESERVE_FILE_BYTES = 8 << 20


def reserve_bytes(total_bytes: int) -> int:
    """Bytes of a disk of ``total_bytes`` that no file data may take."""
    return min(RESERVE_BYTES_MAX, max(RESERVE_BYTES_MIN, total_bytes // RESERVE_FRACTION))


class SpaceGuard:
    """Admits bytes to the disk under the cache directory.

    Args:
        disk: the disk.
        root: a directory on it.
    """

    def __init__(self, disk: Disk, root: Path) -> None:
        self._disk = disk
        self._root = root
        self._budget_bytes = 0

    def try_admit(self, byte_count: int) -> bool:
        """Admit bytes from what was seen free last; ``False`` when it is time to look again. Plain: never blocks."""
        if byte_count > self._budget_bytes:
            return False
        self._budget_bytes -= byte_count
        return True

    async def admit(self, byte_count: int) -> bool:
        """Look at the disk and admit bytes if there is room for them beside the reserve."""
        space = await self._disk.space(self._root)
        usable = space.free_bytes - reserve_bytes(space.total_bytes)
        if usable < byte_count:
            self._budget_bytes = 0
            return False
        self._budget_bytes = min(usable, BUDGET_BYTES_MAX + byte_count) - byte_count
        return True


def release_reserve_file(path: Path) -> bool:
    """Give up the reserve file if the disk has less room than it; whether it was. Blocks; for start-up only."""
    if shutil.disk_usage(path.parent).free >= RESERVE_FILE_BYTES or not path.exists():
        return False
    path.unlink()
    return True


def make_reserve_file(path: Path) -> None:
    """Make the reserve file if it is not there and the disk has ample room. Blocks."""
    if path.exists() or shutil.disk_usage(path.parent).free < 4 * RESERVE_FILE_BYTES:
        return
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, RESERVE_FILE_BYTES)
    except OSError as error:
        path.unlink()
        if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
            raise
    finally:
        os.close(fd)
