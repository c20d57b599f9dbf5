"""Disks that stall or fail on purpose, around a real one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import trio

from ckptfs.disk.local import LocalDisk

if TYPE_CHECKING:
    from pathlib import Path

    from ckptfs.disk.base import Fd
    from ckptfs.env import Env


class FaultyDisk(LocalDisk):
    """A real disk whose calls stop while :attr:`stalled`, and fail while their name is in :attr:`errors`.

    Args:
        env: threads.

    Attributes:
        errors: name of a call (``pwrite``, ``fsync``, ``open``) to the errno that it fails with.
        waiting: calls that are held back now.
    """

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self.errors: dict[str, int] = {}
        self.waiting = 0
        self._go = trio.Event()
        self._go.set()

    def stall(self) -> None:
        """Hold back every call from now on."""
        self._go = trio.Event()

    def release(self) -> None:
        """Let all calls go on."""
        self._go.set()

    async def _pass(self, call: str) -> None:
        self.waiting += 1
        try:
            await self._go.wait()
        finally:
            self.waiting -= 1
        code = self.errors.get(call)
        if code is not None:
            raise OSError(code, os.strerror(code), call)

    def try_pread(self, fd: Fd, offset: int, length: int) -> bytes | None:
        if not self._go.is_set() or "pread" in self.errors:
            return None
        return super().try_pread(fd, offset, length)

    async def open(self, path: Path, flags: int) -> Fd:
        await self._pass("open")
        return await super().open(path, flags)

    async def pread(self, fd: Fd, offset: int, length: int) -> bytes:
        await self._pass("pread")
        return await super().pread(fd, offset, length)

    async def pwrite(self, fd: Fd, offset: int, data: bytes | memoryview) -> None:
        await self._pass("pwrite")
        await super().pwrite(fd, offset, data)

    async def fsync(self, fd: Fd) -> None:
        await self._pass("fsync")
        await super().fsync(fd)

    async def truncate(self, fd: Fd, size: int) -> None:
        await self._pass("truncate")
        await super().truncate(fd, size)
