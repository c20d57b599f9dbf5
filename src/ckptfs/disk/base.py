"""What a disk must do. Calls are asynchronous: each may wait for the device and runs off the event loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

Fd = int


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """Space of a filesystem, in bytes and inodes; ``free`` is what an unprivileged writer may still use."""

    total_bytes: int
    free_bytes: int
    total_inodes: int
    free_inodes: int


class Disk(Protocol):
    """A filesystem on a local disk. Errors are :class:`OSError` as the kernel gives them."""

    async def open(self, path: Path, flags: int) -> Fd:
        """Open (with ``os.O_*`` flags, mode 0600, close-on-exec)."""

    async def close(self, fd: Fd) -> None:
        """Close; the descriptor is gone whatever is raised."""

    async def pread(self, fd: Fd, offset: int, length: int) -> bytes:
        """Up to ``length`` bytes; fewer only at the end of the file."""

    def try_pread(self, fd: Fd, offset: int, length: int) -> bytes | None:
        """As :meth:`pread`, if the bytes are in memory and nothing has to wait; else ``None``. Plain: never blocks."""

    async def pwrite(self, fd: Fd, offset: int, data: bytes | memoryview) -> None:
        """Write all of ``data``, or raise."""

    async def fsync(self, fd: Fd) -> None:
        """Return when data and metadata of the file are on stable storage. A failure is final for the file's bytes."""

    async def fsync_dir(self, path: Path) -> None:
        """Return when the entries of a directory are on stable storage."""

    async def truncate(self, fd: Fd, size: int) -> None:
        """Cut or extend (sparse) to ``size``."""

    async def size(self, fd: Fd) -> int:
        """Size in bytes."""

    async def allocated(self, fd: Fd) -> int:
        """Bytes that the file takes on the disk."""

    async def unlink(self, path: Path) -> None:
        """Remove a name; returns too when it is not there."""

    async def rename(self, old: Path, new: Path) -> None:
        """Rename within the filesystem."""

    async def copy_range(self, source: Fd, target: Fd, size: int) -> None:
        """Copy the first ``size`` bytes in the kernel, sharing extents and keeping holes where the filesystem can."""

    async def seek(self, fd: Fd, offset: int, whence: int) -> int:
        """``lseek`` with ``SEEK_DATA`` or ``SEEK_HOLE``."""

    async def allocate(self, fd: Fd, mode: int, offset: int, length: int) -> None:
        """``fallocate(2)``."""

    async def space(self, path: Path) -> DiskSpace:
        """Space of the filesystem of ``path``."""

    def view(self, fd: Fd, offset: int, length: int) -> AbstractContextManager[memoryview]:
        """Read-only bytes of the file without a copy.

        ``offset`` is a multiple of 64 KiB. Touching it may wait: only on threads.
        """
