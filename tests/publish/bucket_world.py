"""A namespace on a real disk, real staging files, a store that is watched; what a mount does, done by hand."""

from __future__ import annotations

import stat
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import trio

from ckptfs.cache import CacheLimits, Evictor, Fetcher, FetchLimits
from ckptfs.disk.local import LocalDisk
from ckptfs.env import RealEnv
from ckptfs.errors import ObjectNotFoundError, StoreUnavailableError
from ckptfs.namespace import Namespace
from ckptfs.namespace.rows import PLACE_FILE, PLACE_INLINE
from ckptfs.objectstore.memory import MemoryBucket, MemoryObjectStore
from ckptfs.publish import Publisher, PublishLimits
from ckptfs.publish.view import find
from ckptfs.staging import BLOCK_BYTES, Staging, digest_bytes
from ckptfs.types import NO_CONTENT, ROOT_INO, ContentId, ContentState, Ino, Key

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from ckptfs.namespace.rows import Content, Inode
    from ckptfs.objectstore.base import ObjectInfo, ObjectStore

DEADLINE_S = 30.0
INLINE_BYTES_MAX = 64 * 1024
MUTATORS = ("put", "complete_upload", "copy", "delete")


class WatchedStore:
    """Any store: calls are counted, may be stopped or failed, lose their answer, and are looked at when they end."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        self.calls: list[tuple[str, str]] = []
        self.after: Callable[[], Awaitable[None]] | None = None
        self.before: Callable[[str, str], Awaitable[None]] | None = None
        self.lose_answers: Callable[[str, str], bool] = lambda _name, _key: False
        self.parts_at_once = 0
        self.parts_most = 0

    def count(self, name: str) -> int:
        return sum(called == name for called, _ in self.calls)

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.store, name)
        if name in {"capabilities", "url", "aclose"}:
            return attribute

        async def call(*args: Any, **kwargs: Any) -> Any:
            first = args[1] if name == "copy" else args[0] if args else ""
            key = getattr(first, "key", first)
            if self.before is not None:
                await self.before(name, key)
            self.calls.append((name, key))
            self.parts_at_once += name == "put_part"
            self.parts_most = max(self.parts_most, self.parts_at_once)
            try:
                answer = await attribute(*args, **kwargs)
            finally:
                self.parts_at_once -= name == "put_part"
            if self.after is not None and name in MUTATORS:
                await self.after()
            if self.lose_answers(name, key):
                raise StoreUnavailableError(f"{name} of {key}: the answer was lost")
            return answer

        return call


@dataclass
class World:
    """One life of a mount's lower half, over directories and a bucket that outlive it."""

    path: Path
    store: WatchedStore
    limits: PublishLimits = field(
        default_factory=lambda: PublishLimits(
            part_bytes=BLOCK_BYTES, retry_first_s=0.01, retry_most_s=0.1, permanent_s=0.1, request_s=5.0
        )
    )
    fetch_limits: FetchLimits = field(default_factory=lambda: FetchLimits(retry_first_s=0.01, read_s=1.0))
    cache_bytes: int = 1 << 40

    def __post_init__(self) -> None:
        self.path.mkdir(exist_ok=True)
        self.env = RealEnv()
        self.staging = Staging(LocalDisk(self.env), self.path / "contents")
        self.staging.prepare()
        self.namespace = Namespace(self.env, self.path / "namespace.sqlite")
        self.tree = self.namespace.tree
        self.contents = self.namespace.contents
        self.bucket = self.namespace.bucket
        self.tree.make_root(0o755, 0, 0)
        self.used: set[ContentId] = set()
        self.fetcher = Fetcher(self.env, self.store, self.namespace, self.staging, self.fetch_limits)
        self.evictor = Evictor(
            self.env,
            self.namespace,
            self.staging,
            CacheLimits(self.cache_bytes, retry_s=0.01),
            fetcher=self.fetcher,
            in_use=self.used.__contains__,
        )
        self.publisher = Publisher(
            self.env,
            self.store,
            self.namespace,
            self.staging,
            self.fetcher,
            self.limits,
            adopt=self.adopt,
            in_use=self.used.__contains__,
        )

    # --- what a mount does

    @asynccontextmanager
    async def life(self, *, publishing: bool = True) -> AsyncIterator[World]:
        """Run the loops; at the end the bytes of the journal are on the disk, unless the life was :meth:`kill`-ed."""
        try:
            with trio.fail_after(DEADLINE_S):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self.namespace.state.run)
                    async with trio.open_nursery() as work:
                        work.start_soon(self.evictor.run)
                        if publishing:
                            work.start_soon(self.publisher.run)
                        yield self
                        work.cancel_scope.cancel()
                    self.namespace.state.close_soon()
        finally:
            self.namespace.state.database.close()

    def adopt(self, parent: Ino, name: bytes, info: ObjectInfo) -> None:
        """As the vfs shows an object that others made."""
        inode = self.tree.adopt(parent, name, stat.S_IFREG | 0o644, 0, 0, info.mtime_ns)
        content = self.contents.from_bucket(inode.ino, info.key, info.etag, info.size)
        inode.content, inode.size = content.id, info.size
        self.bucket.holds(info.key, info, content.id)

    def mkdir(self, path: str) -> Ino:
        parent, name = self.place(path)
        return self.tree.create(parent, name, stat.S_IFDIR | 0o755, 0, 0).ino

    def place(self, path: str) -> tuple[Ino, bytes]:
        directory, _, name = path.rpartition("/")
        inode = find(self.namespace, Key(directory)) if directory else self.tree.inode(ROOT_INO)
        assert inode is not None, f"no directory {directory}"
        return inode.ino, name.encode()

    def find(self, path: str) -> Inode | None:
        return find(self.namespace, Key(path))

    def content_of(self, path: str) -> Content:
        inode = self.find(path)
        assert inode is not None, f"no file {path}"
        content = self.contents.get(inode.content)
        assert content is not None, f"{path} has no content"
        return content

    async def write(self, path: str, data: bytes, *, oblige: bool = True) -> Content:
        """Write a whole file, as open with O_TRUNC, write and close do."""
        parent, name = self.place(path)
        inode = self.tree.lookup(parent, name) or self.tree.create(parent, name, stat.S_IFREG | 0o644, 0, 0)
        place = PLACE_INLINE if len(data) <= INLINE_BYTES_MAX else PLACE_FILE
        content_id = self.contents.begin(inode.ino, place).id
        if place == PLACE_FILE:
            fd = await self.staging.create(content_id)
            await self.staging.disk.pwrite(fd, 0, data)
            await self.staging.disk.close(fd)
        content = self.contents.get(content_id)
        assert content is not None
        content.size, content.digests, content.block_bytes = len(data), digest_bytes(data), BLOCK_BYTES
        content.data = data if place == PLACE_INLINE else None
        self.contents.move(content, ContentState.DURABLE)
        inode = self.tree.lookup(parent, name)
        assert inode is not None
        inode.size = len(data)
        self.drop(self.contents.commit(inode, content_id))
        if oblige:
            self.contents.oblige(inode)
        return content

    def drop(self, content_id: ContentId) -> None:
        if content_id == NO_CONTENT or content_id in self.used:
            return
        content = self.contents.get(content_id)
        if content is None:
            return
        inode = self.namespace.state.inodes.get(content.ino)
        if inode is None or inode.content != content_id or not inode.nlink:
            self.contents.drop(content_id)

    def unlink(self, path: str) -> None:
        inode = self.tree.unlink(*self.place(path))
        if not inode.nlink:
            self.drop(inode.content)

    def rename(self, old: str, new: str, flags: int = 0) -> None:
        replaced = self.tree.rename(*self.place(old), *self.place(new), flags)
        if replaced is not None and not replaced.nlink:
            self.drop(replaced.content)

    def link(self, old: str, new: str) -> None:
        inode = self.find(old)
        assert inode is not None
        self.tree.link(inode.ino, *self.place(new))

    async def read(self, path: str) -> bytes:
        """The whole file, as a mount reads it."""
        inode = self.find(path)
        assert inode is not None
        if inode.content == NO_CONTENT:
            return b""
        return await self.fetcher.read(inode.content, 0, self.content_of(path).size)

    async def reclaim(self, *paths: str) -> None:
        """Evict the bytes of published files."""
        await self.evictor._evict([self.content_of(path).id for path in paths])

    async def drain(self) -> None:
        await self.publisher.drained()

    # --- what others do in the bucket

    async def objects(self) -> dict[str, bytes]:
        """Every object and its bytes."""
        found: dict[str, bytes] = {}
        token = None
        while True:
            page = await self.store.store.list_page("", token=token)
            for info in page.objects:
                data = bytearray(info.size)
                await self.store.store.get_range(info.key, 0, memoryview(data))
                found[info.key] = bytes(data)
            token = page.next_token
            if token is None:
                return found

    async def put_foreign(self, key: str, data: bytes) -> ObjectInfo:
        """Another tool puts an object."""
        info: ObjectInfo = await self.store.store.put(Key(key), data)
        return info

    async def is_there(self, key: str) -> bool:
        try:
            await self.store.store.head(Key(key))
        except ObjectNotFoundError:
            return False
        return True

    async def until(self, condition: Callable[[], bool]) -> None:
        """Poll until something is so; the life's deadline ends it."""
        while not condition():  # noqa: ASYNC110 - nothing announces it
            await trio.sleep(0.005)


def memory_store() -> WatchedStore:
    return WatchedStore(MemoryObjectStore(RealEnv(), MemoryBucket()))


def pattern(size: int, seed: int = 0) -> bytes:
    """Bytes of which no two blocks are equal."""
    return b"".join((seed * 1_000_003 + number).to_bytes(8, "little") * 512 for number in range(-(-size // 4096)))[
        :size
    ]
