"""A filesystem without its kernel side: real namespace and staging files, on a disk that can stall and fail."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

from ckptfs.env import RealEnv
from ckptfs.namespace import Namespace
from ckptfs.objectstore.memory import MemoryObjectStore
from ckptfs.staging import Staging
from ckptfs.testing.disks import FaultyDisk
from ckptfs.types import ROOT_INO, CloseMode, Ino
from ckptfs.vfs import Vfs, VfsOptions
from ckptfs.vfs.listing import ForeignAttributes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from ckptfs.types import ContentId


class NoReader:
    """Stands for the bucket where a test never needs it: any use is an error."""

    async def read(self, content: ContentId, offset: int, length: int) -> bytes:
        raise AssertionError(f"{length} bytes of content {content} at {offset} were to be here")

    async def materialize(self, content: ContentId) -> None:
        raise AssertionError(f"content {content} was to be here")


class StallingStore(MemoryObjectStore):
    """A memory store whose listings stop while :attr:`stalled` is set."""

    stalled: trio.Event | None = None

    async def list_page(self, *args: object, **kwargs: object) -> object:  # type: ignore[override]
        if self.stalled is not None:
            await self.stalled.wait()
        return await super().list_page(*args, **kwargs)  # type: ignore[arg-type]


class Rig:
    """One life of a filesystem."""

    def __init__(self, path: Path, mode: CloseMode) -> None:
        env = RealEnv()
        self.disk = FaultyDisk(env)
        self.staging = Staging(self.disk, path / "contents")
        self.staging.prepare()
        self.store = StallingStore(env)
        self.namespace = Namespace(env, path / "namespace.sqlite")
        self.namespace.tree.make_root(0o755, 0, 0)
        self.vfs = Vfs(
            env,
            self.namespace,
            self.staging,
            self.store,
            NoReader(),
            VfsOptions(mode, 3600.0, ForeignAttributes(0, 0)),
        )

    async def create(self, name: bytes) -> tuple[int, Ino]:
        handle, attributes = await self.vfs.names.create(ROOT_INO, name, 0o644, os.O_RDWR, 0, 0)
        self.vfs.core.remember(attributes.inode.ino)
        return handle, attributes.inode.ino

    async def close(self, handle: int) -> None:
        try:
            await self.vfs.io.flush(handle)
        finally:
            await self.vfs.io.release(handle)

    async def save(self, name: bytes, data: bytes) -> Ino:
        handle, ino = await self.create(name)
        await self.vfs.io.write(handle, 0, data)
        await self.close(handle)
        return ino

    async def load(self, ino: Ino) -> bytes:
        handle = await self.vfs.io.open(ino, os.O_RDONLY, 0)
        data = await self.vfs.io.read(handle, 0, 1 << 30)
        await self.close(handle)
        return data


@asynccontextmanager
async def running(path: Path, mode: CloseMode = CloseMode.SYNC) -> AsyncIterator[Rig]:
    rig = Rig(path, mode)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.namespace.state.run)
        nursery.start_soon(rig.vfs.run)
        yield rig
        nursery.cancel_scope.cancel()
    rig.namespace.state.close()
