"""``file:///dir``: a directory as a bucket. Objects are plain files, so ``ls``, ``cp`` and ``sha256sum`` work on it.

Every object appears by one rename of a synced file and is durable (its directory synced too) when the call returns.
Conditions hold among all processes that use the store through this adapter; what other tools put there is seen, with an
etag, but they do not take part in the locking.

``DIR/.ckptfs/tmp/`` belongs to the store (temporary files, parts, its lock) and is in no listing. Keys that no file can
have (``a//b``, ``..``, a name above 255 bytes, an object that is also a directory) are refused on writing and not found
on reading. Names that are not UTF-8 are keys with surrogate escapes, as everywhere in Python. Symlinks are not followed
and no objects.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar, TypeVarTuple

import trio

from ckptfs.errors import ObjectNotFoundError, PreconditionError, StoreRejectedError, StoreUnavailableError
from ckptfs.objectstore.base import ANY, Capabilities, Condition, ListPage, ObjectInfo, Part, Upload
from ckptfs.objectstore.checks import check_body, check_list_arguments, check_metadata, check_parts, check_range
from ckptfs.objectstore.file_io import FileTree, components_of, copy_all, error_of, write_all
from ckptfs.objectstore.file_list import Lister, Walk, object_info, stat_file
from ckptfs.objectstore.file_meta import TICK_NS, etag_of, is_recent, same_bytes
from ckptfs.objectstore.file_upload import FileUploads
from ckptfs.types import ETag, Key

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ckptfs.env import Env
    from ckptfs.objectstore.base import Body

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

THREADS_MAX = 16
_READ_BYTES_MAX = 1 << 30
_SETTLE_COUNT_MAX = 5

_CAPABILITIES = Capabilities(
    part_bytes_min=1,
    part_bytes_max=1 << 40,
    part_count_max=10_000,
    object_bytes_max=1 << 43,
    key_bytes_max=1024,
    conditional_put=True,
    conditional_delete=True,
    checksums=False,
)


class FileObjectStore:
    """The port over a directory.

    Args:
        root: absolute path of the directory, which must exist; it is made by nobody but the operator.
        env: clock, names and threads.
        threads_max: file operations at a time.
    """

    def __init__(self, root: str, env: Env, *, threads_max: int = THREADS_MAX) -> None:
        assert os.path.isabs(root), f"the directory must be absolute: {root!r}"
        self._root = os.path.normpath(root)
        self._env = env
        self._tree = FileTree(self._root)
        self._uploads = FileUploads(self._tree)
        self._lister = Lister(self._root)
        self._limiter = trio.CapacityLimiter(threads_max)
        self._own_is_made = False
        self._closed = False

    @property
    def capabilities(self) -> Capabilities:
        return _CAPABILITIES

    @property
    def url(self) -> str:
        return f"file://{self._root}"

    async def probe(self) -> None:
        def look() -> None:
            fd = self._tree.open_root()
            try:
                os.scandir(fd).close()
            finally:
                os.close(fd)

        await self._run(f"list {self._root}", look)

    async def head(self, key: Key) -> ObjectInfo:
        for _ in range(_SETTLE_COUNT_MAX):
            info, settled = await self._run(f"look at {key!r}", self._head, key)
            if settled:
                return info
            await self._env.sleep(TICK_NS / 1e9)
        return self._without_generation(info)

    async def get_range(self, key: Key, offset: int, into: memoryview, *, etag: ETag | None = None) -> None:
        await self._run(f"read {key!r}", self._get_range, key, offset, into, etag)

    async def put(
        self, key: Key, body: Body, *, condition: Condition = ANY, metadata: Mapping[str, str] | None = None
    ) -> ObjectInfo:
        _check_key(key)
        check_body(key, body, _CAPABILITIES.part_bytes_max)
        taken = check_metadata(metadata)
        return await self._run(f"write {key!r}", self._put, key, body, condition, taken)

    async def begin_upload(self, key: Key, *, metadata: Mapping[str, str] | None = None) -> Upload:
        _check_key(key)
        taken = check_metadata(metadata)
        upload = Upload(key, self._env.token(), self._env.wall_ns())

        def begin() -> None:
            self._make_own()
            self._uploads.begin(upload, taken)

        await self._run(f"begin {key!r}", begin)
        return upload

    async def put_part(self, upload: Upload, number: int, body: Body) -> Part:
        assert 1 <= number <= _CAPABILITIES.part_count_max, f"part number {number} out of range"
        check_body(upload.key, body, _CAPABILITIES.part_bytes_max)
        name, mtime_ns = self._env.token(), self._env.wall_ns()
        what = f"write part {number} of {upload.key!r}"
        return await self._run(what, self._uploads.put_part, upload, number, body, name, mtime_ns)

    async def complete_upload(self, upload: Upload, parts: Sequence[Part], *, condition: Condition = ANY) -> ObjectInfo:
        ordered = check_parts(parts, _CAPABILITIES)
        return await self._run(f"complete {upload.key!r}", self._complete, upload, ordered, condition)

    async def abort_upload(self, upload: Upload) -> None:
        await self._run(f"abort {upload.key!r}", self._abort, upload)

    async def list_uploads(self, prefix: str = "") -> Sequence[Upload]:
        uploads = await self._run("list uploads", self._uploads.all)
        return [upload for upload in uploads if upload.key.startswith(prefix)]

    async def list_page(
        self, prefix: str = "", *, delimiter: str = "", token: str | None = None, limit: int = 1000
    ) -> ListPage:
        check_list_arguments(delimiter, limit)
        walk = self._lister.walk(prefix, delimiter, token)
        page, hot, last = await self._run(f"list {prefix!r}", self._list_page, walk, limit)
        if last is not None:
            page = replace(page, next_token=self._lister.keep(walk, last))
        for _ in range(_SETTLE_COUNT_MAX):
            if not hot:
                return page
            await self._env.sleep(TICK_NS / 1e9)
            page, hot = await self._run(f"list {prefix!r}", self._look_again, page, hot)
        objects = [self._without_generation(info) if info.key in hot else info for info in page.objects]
        return replace(page, objects=objects)

    async def delete(self, key: Key, *, condition: Condition = ANY) -> None:
        assert not condition.absent, "there is nothing to delete where nothing may be"

        def remove() -> None:
            self._make_own()
            self._tree.remove(key, condition)

        await self._run(f"delete {key!r}", remove)

    async def copy(
        self,
        source: Key,
        target: Key,
        *,
        etag: ETag,
        condition: Condition = ANY,
        metadata: Mapping[str, str] | None = None,
    ) -> ObjectInfo:
        _check_key(target)
        taken = None if metadata is None else check_metadata(metadata)
        return await self._run(f"copy {source!r} to {target!r}", self._copy, source, target, etag, condition, taken)

    async def aclose(self) -> None:
        self._closed = True
        await trio.lowlevel.checkpoint()

    async def _run(self, what: str, fn: Callable[[*Ts], T], *args: *Ts) -> T:
        """Run ``fn`` on a thread; ``what`` it does is for the message of an error."""
        if self._closed:
            raise StoreRejectedError("the store is closed")
        try:
            return await self._env.run_blocking(fn, *args, limiter=self._limiter)
        except OSError as e:
            raise error_of(e, what) from e

    def _make_own(self) -> None:
        """Make the store's own directory before the first change: a mount that only reads writes nothing."""
        if not self._own_is_made or not os.path.isdir(self._tree.own):
            self._tree.make_own()
            self._uploads.collect(self._env.wall_ns())
            self._own_is_made = True

    def _head(self, key: Key) -> tuple[ObjectInfo, bool]:
        with self._tree.object_fd(key) as (fd, status):
            noted = self._tree.meta.read(fd, status)
            info = replace(object_info(key, status), metadata=dict(noted.user) if noted else {})
            return info, noted is not None or self._tree.meta.settled(fd, status, self._env.wall_ns())

    def _get_range(self, key: Key, offset: int, into: memoryview, etag: ETag | None) -> None:
        with self._tree.object_fd(key) as (fd, status):
            _check_generation(key, status, etag)
            check_range(key, offset, into.nbytes, status.st_size)
            view = into.cast("B")
            done = 0
            while done < len(view):
                count = os.preadv(fd, [view[done : done + _READ_BYTES_MAX]], offset + done)
                if count == 0:
                    break
                done += count
            # Only another tool writes into a file that has its name; what was read may then be of two generations.
            if done < len(view) or not same_bytes(os.fstat(fd), status):
                raise StoreUnavailableError(f"{key!r} was changed while it was read")

    def _put(self, key: Key, body: Body, condition: Condition, metadata: Mapping[str, str]) -> ObjectInfo:
        self._make_own()
        with self._tree.temporary(self._env.token()) as (fd, path):
            write_all(fd, body)
            return self._commit(fd, path, key, condition, metadata)

    def _copy(
        self, source: Key, target: Key, etag: ETag, condition: Condition, metadata: Mapping[str, str] | None
    ) -> ObjectInfo:
        self._make_own()
        with (
            self._tree.object_fd(source) as (source_fd, status),
            self._tree.temporary(self._env.token()) as (fd, path),
        ):
            _check_generation(source, status, etag)
            if metadata is None:
                noted = self._tree.meta.read(source_fd, status)
                metadata = dict(noted.user) if noted else {}
            copy_all(source_fd, fd, status.st_size)
            if not same_bytes(os.fstat(source_fd), status):
                raise StoreUnavailableError(f"{source!r} was changed while it was copied")
            return self._commit(fd, path, target, condition, metadata)

    def _complete(self, upload: Upload, parts: Sequence[Part], condition: Condition) -> ObjectInfo:
        self._make_own()
        with self._uploads.owned(upload) as metadata, self._tree.temporary(self._env.token()) as (fd, path):
            self._check_early(upload.key, condition)
            self._uploads.concatenate(upload, parts, fd)
            info = self._commit(fd, path, upload.key, condition, metadata)
            self._uploads.remove(upload)
            return info

    def _abort(self, upload: Upload) -> None:
        try:
            with self._uploads.owned(upload):
                self._uploads.remove(upload)
        except ObjectNotFoundError:
            return

    def _check_early(self, key: Key, condition: Condition) -> None:
        """Spare the copy of many bytes when the commit would refuse it anyway."""
        try:
            with self._tree.object_fd(key) as (_, status):
                if condition.absent:
                    raise PreconditionError(f"{key!r} is already there")
                _check_generation(key, status, condition.etag)
        except ObjectNotFoundError as e:
            if condition.etag is not None:
                raise PreconditionError(f"{key!r} is not the generation {condition.etag!r}") from e

    def _commit(self, fd: int, path: str, key: Key, condition: Condition, metadata: Mapping[str, str]) -> ObjectInfo:
        status = self._tree.commit(fd, path, key, condition, metadata=metadata, mtime_ns=self._env.wall_ns())
        return replace(object_info(key, status), metadata=metadata)

    def _list_page(self, walk: Walk, limit: int) -> tuple[ListPage, frozenset[Key], bytes | None]:
        """A page without its token, the keys of it that are hot, and the last key if there are more pages."""
        os.close(self._tree.open_root())
        found, more = walk.page(limit)
        objects = [entry.info() for entry in found if entry.status is not None]
        prefixes = [os.fsdecode(entry.key) for entry in found if entry.status is None]
        hot = self._hot(objects, [entry.status for entry in found if entry.status is not None])
        return ListPage(objects, prefixes), hot, found[-1].key if more else None

    def _look_again(self, page: ListPage, hot: frozenset[Key]) -> tuple[ListPage, frozenset[Key]]:
        objects: list[ObjectInfo] = []
        again: list[tuple[ObjectInfo, os.stat_result]] = []
        for info in page.objects:
            if info.key not in hot:
                objects.append(info)
                continue
            status = stat_file(os.fsencode(self._root), os.fsencode(info.key))
            if status is not None:
                objects.append(object_info(info.key, status))
                again.append((objects[-1], status))
        still = self._hot([info for info, _ in again], [status for _, status in again])
        return replace(page, objects=objects), still

    def _hot(self, objects: Sequence[ObjectInfo], statuses: Sequence[os.stat_result]) -> frozenset[Key]:
        """Keys whose etag might survive a change within this tick of the kernel's clock."""
        now_ns = self._env.wall_ns()
        hot = set()
        for info, status in zip(objects, statuses, strict=True):
            if is_recent(status, now_ns) and not self._is_own(info):
                hot.add(info.key)
        return frozenset(hot)

    def _is_own(self, info: ObjectInfo) -> bool:
        try:
            with self._tree.object_fd(info.key) as (fd, status):
                return etag_of(status) == info.etag and self._tree.meta.read(fd, status) is not None
        except ObjectNotFoundError:
            return False

    def _without_generation(self, info: ObjectInfo) -> ObjectInfo:
        """``info`` of a file that another tool keeps changing: with an etag that no later look will find again."""
        return replace(info, etag=ETag(f"{info.etag}-changing-{self._env.token()}"))


def _check_key(key: Key) -> None:
    """Refuse a key that no file can have."""
    byte_count = len(os.fsencode(key))
    if components_of(key) is None or byte_count > _CAPABILITIES.key_bytes_max:
        raise StoreRejectedError(
            f"no file can be named {key!r}",
            hint="a file:// store takes relative paths of names up to 255 bytes, 1024 bytes in all",
        )


def _check_generation(key: Key, status: os.stat_result, etag: ETag | None) -> None:
    """Raise :class:`PreconditionError` unless ``status`` is the generation ``etag``."""
    if etag is not None and etag_of(status) != etag:
        raise PreconditionError(f"{key!r} is no longer the generation {etag!r}")
