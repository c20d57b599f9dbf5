"""The machine's own filesystem."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
from typing import TYPE_CHECKING

import trio

from ckptfs.disk.base import DiskSpace, Fd

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ckptfs.env import Env

_COPY_BYTES = 64 << 20
_libc = ctypes.CDLL(None, use_errno=True)


def pread_all(fd: Fd, offset: int, length: int) -> bytes:
    """``pread`` until ``length`` bytes or the end of the file."""
    data = os.pread(fd, length, offset)
    if len(data) == length or not data:
        return data
    parts = [data]
    have = len(data)
    while have < length and (data := os.pread(fd, length - have, offset + have)):
        parts.append(data)
        have += len(data)
    return b"".join(parts)


def pwrite_all(fd: Fd, offset: int, data: bytes | memoryview) -> None:
    """``pwrite`` until all is written."""
    written = os.pwrite(fd, data, offset)
    view = memoryview(data)
    while written < len(view):
        step = os.pwrite(fd, view[written:], offset + written)
        if step == 0:
            raise OSError(errno.EIO, "write of nothing")
        written += step


def _unlink(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        path.unlink()


def _fsync_dir(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _copy(source: Fd, target: Fd, size: int) -> None:
    """Copy data segments only, so that holes stay holes."""
    os.ftruncate(target, size)
    offset = 0
    while offset < size:
        try:
            start = os.lseek(source, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            raise
        end = min(os.lseek(source, start, os.SEEK_HOLE), size)
        while start < end:
            step = os.copy_file_range(source, target, min(end - start, _COPY_BYTES), start, start)
            if step == 0:
                raise OSError(errno.EIO, "the file is shorter than it should be")
            start += step
        offset = max(end, offset + 1)


def _fallocate(fd: Fd, mode: int, offset: int, length: int) -> None:
    if _libc.fallocate(fd, mode, ctypes.c_int64(offset), ctypes.c_int64(length)):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _space(path: Path) -> DiskSpace:
    found = os.statvfs(path)
    return DiskSpace(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize, found.f_files, found.f_favail)


class LocalDisk:
    """The kernel's filesystem calls, on threads.

    Args:
        env: threads.
        concurrency: calls in flight at once; further ones wait.
    """

    def __init__(self, env: Env, *, concurrency: int = 16) -> None:
        self._env = env
        self._limiter = trio.CapacityLimiter(concurrency)

    async def open(self, path: Path, flags: int) -> Fd:
        return await self._env.run_blocking(os.open, path, flags | os.O_CLOEXEC, 0o600, limiter=self._limiter)

    async def close(self, fd: Fd) -> None:
        await self._env.run_blocking(os.close, fd, limiter=self._limiter)

    async def pread(self, fd: Fd, offset: int, length: int) -> bytes:
        return await self._env.run_blocking(pread_all, fd, offset, length, limiter=self._limiter)

    def try_pread(self, fd: Fd, offset: int, length: int) -> bytes | None:
        buffer = bytearray(length)
        try:
            have = os.preadv(fd, [buffer], offset, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno in {errno.EAGAIN, errno.EOPNOTSUPP}:
                return None
            raise
        return bytes(memoryview(buffer)[:have]) if have == length else None

    async def pwrite(self, fd: Fd, offset: int, data: bytes | memoryview) -> None:
        await self._env.run_blocking(pwrite_all, fd, offset, data, limiter=self._limiter)

    async def fsync(self, fd: Fd) -> None:
        await self._env.run_blocking(os.fsync, fd, limiter=self._limiter)

    async def fsync_dir(self, path: Path) -> None:
        await self._env.run_blocking(_fsync_dir, path, limiter=self._limiter)

    async def truncate(self, fd: Fd, size: int) -> None:
        await self._env.run_blocking(os.ftruncate, fd, size, limiter=self._limiter)

    async def size(self, fd: Fd) -> int:
        return (await self._env.run_blocking(os.fstat, fd, limiter=self._limiter)).st_size

    async def allocated(self, fd: Fd) -> int:
        return (await self._env.run_blocking(os.fstat, fd, limiter=self._limiter)).st_blocks * 512

    async def unlink(self, path: Path) -> None:
        await self._env.run_blocking(_unlink, path, limiter=self._limiter)

    async def rename(self, old: Path, new: Path) -> None:
        await self._env.run_blocking(os.rename, old, new, limiter=self._limiter)

    async def copy_range(self, source: Fd, target: Fd, size: int) -> None:
        await self._env.run_blocking(_copy, source, target, size, limiter=self._limiter)

    async def seek(self, fd: Fd, offset: int, whence: int) -> int:
        return await self._env.run_blocking(os.lseek, fd, offset, whence, limiter=self._limiter)

    async def allocate(self, fd: Fd, mode: int, offset: int, length: int) -> None:
        await self._env.run_blocking(_fallocate, fd, mode, offset, length, limiter=self._limiter)

    async def space(self, path: Path) -> DiskSpace:
        return await self._env.run_blocking(_space, path, limiter=self._limiter)

    @contextlib.contextmanager
    def view(self, fd: Fd, offset: int, length: int) -> Iterator[memoryview]:
        if length == 0:
            yield memoryview(b"")
            return
        with mmap.mmap(fd, length, prot=mmap.PROT_READ, offset=offset) as mapped, memoryview(mapped) as bytes_:
            yield bytes_
