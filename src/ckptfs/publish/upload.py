"""Bytes on their way from staging into the bucket: one put, or parts in parallel, and what the bucket then says it has.

Every block is proven against its digest in the very memory that is sent, so that wrong bytes of the disk never leave
this node. The bytes are read into memory and not mapped: a map of a file whose disk fails kills the process that
touches it.
"""

from __future__ import annotations

import logging
from collections import deque
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio
import xxhash

from ckptfs.errors import (
    CkptfsError,
    IntegrityError,
    ObjectNotFoundError,
    SpaceError,
    StoreUnavailableError,
)
from ckptfs.objectstore.base import Upload
from ckptfs.staging import BLOCK_BYTES, DIGEST_BYTES
from ckptfs.types import ContentId

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ckptfs.disk.base import Fd
    from ckptfs.env import Env
    from ckptfs.namespace import Namespace
    from ckptfs.namespace.rows import Content, Inode
    from ckptfs.objectstore.base import Condition, ObjectInfo, ObjectStore, Part
    from ckptfs.staging import Staging
    from ckptfs.types import Key

DIGEST_NAME = "ckptfs-digest"
"""Metadata: XXH3-128 over the digests of the blocks, in hexadecimal."""

MARK_NAME = "ckptfs-mark"
"""Metadata: which namespace put the object, under which key, and which of its contents it is.

A copy that others make elsewhere does not fit its key.
"""

log = logging.getLogger(__name__)

_NOTE = "begin:"
"""How an upload whose id is not known yet is noted: this, something unique, ``@``, and when, nanoseconds."""

_CLOCK_SKEW_NS = 15 * 60 * 10**9
"""How far the store's clock may differ from ours."""

_ABORT_S = 5.0
BUFFER_BYTES_MAX = 96 << 20
"""Most bytes in memory on their way into the bucket, unless one part is larger."""

_UNBUDGETED_BYTES = 64 * 1024
_BYTES_PER_S_MIN = 256 * 1024


@dataclass(frozen=True, slots=True)
class PublishLimits:
    """Bounds of publication.

    Attributes:
        part_bytes: size of a part, and largest object that goes up in one put.
        upload_count_max: parts, or objects of that size, under way at once.
        request_s: how long a request may take, seconds, besides what its bytes need.
        retry_first_s: shortest and
        retry_most_s: longest wait before a failed key is tried again, seconds.
        permanent_s: the same for errors that a retry rarely cures.
        give_way_s: between the beginnings of two objects while callers are at work, seconds;
        give_way_late_s: the same once something has not been published for
        late_s: seconds.
        walk_count: names or keys that the expansion of a tree move handles between two waits.
    """

    part_bytes: int = 8 << 20
    upload_count_max: int = 8
    request_s: float = 120.0
    retry_first_s: float = 0.2
    retry_most_s: float = 30.0
    permanent_s: float = 60.0
    give_way_s: float = 0.1
    give_way_late_s: float = 0.02
    late_s: float = 60.0
    walk_count: int = 500

    @property
    def worker_count(self) -> int:
        """Keys under way at once: more than large ones, so that a few that hang do not hold up the others."""
        return 24 + self.upload_count_max

    @property
    def file_part_count(self) -> int:
        """Parts of one object under way at once: it leaves room for others."""
        return max(1, self.upload_count_max * 3 // 4)

    @property
    def buffer_bytes(self) -> int:
        """Bytes of all objects in memory at once: those of all uploads, but no more than the daemon's size allows."""
        return max(self.part_bytes, min(self.part_bytes * self.upload_count_max, BUFFER_BYTES_MAX))


@dataclass(frozen=True, slots=True)
class Job:
    """A content that is to go up, as it was when the attempt began.

    Attributes:
        key: where to.
        content: which; its staging file is read unless ``data`` has the bytes.
        size: bytes.
        digests: of its blocks.
        data: the bytes of an inline content.
        metadata: of the object.
    """

    key: Key
    content: ContentId
    size: int
    digests: bytes
    data: bytes | None
    metadata: Mapping[str, str]

    @property
    def root(self) -> str:
        """The digest that the object carries."""
        return self.metadata.get(DIGEST_NAME, "")


def root_digest(digests: bytes) -> str:
    """One digest for a whole content: XXH3-128 over the digests of its blocks, in hexadecimal."""
    return xxhash.xxh3_128_hexdigest(digests)


def mark_of(mark: int, key: Key, content: ContentId) -> str:
    """Value of :data:`MARK_NAME` for ``content`` that the namespace with this mark puts under ``key``."""
    return f"{_owner(mark, key)}{content}"


def marked_content(mark: int, info: ObjectInfo) -> ContentId | None:
    """Which content the namespace with this mark put there as this object; ``None`` when it did not."""
    owner, value = _owner(mark, info.key), (info.metadata or {}).get(MARK_NAME, "")
    number = value.removeprefix(owner)
    return ContentId(int(number)) if value.startswith(owner) and number.isdecimal() else None


def _owner(mark: int, key: Key) -> str:
    return f"{mark:014x}-{xxhash.xxh3_64_hexdigest(key.encode('utf-8', 'surrogatepass'))}-"


def metadata_of(content: Content, inode: Inode | None, mark: int, key: Key) -> dict[str, str]:
    """What an object says about its content. Names of mtime, mode, uid and gid as rclone and s3fs write them."""
    metadata = {DIGEST_NAME: root_digest(content.digests), MARK_NAME: mark_of(mark, key, content.id)}
    if inode is not None:
        metadata["mtime"] = f"{inode.mtime_ns // 10**9}.{inode.mtime_ns % 10**9:09d}"
        metadata |= {"mode": str(inode.mode), "uid": str(inode.uid), "gid": str(inode.gid)}
    return metadata


def job_of(content: Content, inode: Inode | None, mark: int, key: Key) -> Job:
    """The job of putting a sealed content under ``key``."""
    metadata = metadata_of(content, inode, mark, key)
    return Job(key, content.id, content.size, content.digests, content.data, metadata)


def part_size(size: int, part_bytes: int, part_bytes_min: int, part_count_max: int) -> int:
    """Bytes of each part but the last: whole blocks, at least what the store wants, and not too many parts."""
    least = max(part_bytes, part_bytes_min, -(-size // part_count_max))
    return -(-least // BLOCK_BYTES) * BLOCK_BYTES


class Budget:
    """Bytes that may be in memory at once; first come, first served. More than all of it is admitted alone."""

    def __init__(self, byte_count: int) -> None:
        self._total = self._free = byte_count
        self._queue: deque[tuple[int, trio.Event]] = deque()

    @property
    def used_bytes(self) -> int:
        """What is admitted now."""
        return self._total - self._free

    async def acquire(self, byte_count: int) -> int:
        """Wait for room; gives what to :meth:`release`."""
        wanted = min(byte_count, self._total)
        await trio.lowlevel.checkpoint()
        if wanted == 0 or (not self._queue and wanted <= self._free):
            self._free -= wanted
            return wanted
        event = trio.Event()
        self._queue.append((wanted, event))
        try:
            await event.wait()
        except trio.Cancelled:
            if event.is_set():
                self.release(wanted)
            else:
                self._queue.remove((wanted, event))
                self._admit()
            raise
        return wanted

    def release(self, byte_count: int) -> None:
        """Give back what :meth:`acquire` gave."""
        self._free += byte_count
        self._admit()

    def _admit(self) -> None:
        while self._queue and self._queue[0][0] <= self._free:
            wanted, event = self._queue.popleft()
            self._free -= wanted
            event.set()


@contextmanager
def deadline(seconds: float, what: str) -> Iterator[None]:
    """Give up what takes longer than ``seconds``.

    Raises:
        StoreUnavailableError: it did; what it did to the bucket is not known.
    """
    with trio.move_on_after(seconds) as scope:
        yield
    if scope.cancelled_caught:
        raise StoreUnavailableError(f"{what}: no answer in {seconds:.0f} s")


class Uploader:
    """Puts contents.

    Args:
        env: threads and waiting.
        store: the bucket.
        namespace: where begun uploads are noted.
        staging: the bytes.
        limits: bounds.
    """

    def __init__(
        self, env: Env, store: ObjectStore, namespace: Namespace, staging: Staging, limits: PublishLimits
    ) -> None:
        self._env = env
        self._store = store
        self._namespace = namespace
        self._staging = staging
        self._limits = limits
        self.budget = Budget(limits.buffer_bytes)
        self.left_over: list[Upload] = []
        """Uploads that are still to be aborted."""
        self._active: set[str] = set()

    def request_s(self, byte_count: int = 0) -> float:
        """How long a request with so many bytes may take, seconds."""
        return self._limits.request_s + byte_count / _BYTES_PER_S_MIN

    async def put(self, job: Job, condition: Condition) -> ObjectInfo:
        """Put the content under its key.

        Raises:
            FileNotFoundError: the staging file is gone.
            IntegrityError: the bytes are not those of the digests; nothing became visible.
            StoreError: as the store says.
        """
        if job.data is not None:
            await trio.lowlevel.checkpoint()
            check_blocks(job, 0, job.data)
            return await self._put_whole(job, job.data, condition)
        fd = await self._staging.open(job.content)
        try:
            if job.size <= self._limits.part_bytes:
                taken = await self.budget.acquire(job.size if job.size > _UNBUDGETED_BYTES else 0)
                try:
                    return await self._put_whole(job, await self._read(job, fd, 0, job.size), condition)
                finally:
                    self.budget.release(taken)
            return await self._put_parts(job, fd, condition)
        finally:
            with trio.CancelScope(shield=True):
                await self._staging.disk.close(fd)

    async def _put_whole(self, job: Job, body: bytes, condition: Condition) -> ObjectInfo:
        with deadline(self.request_s(job.size), f"put of {job.key!r}"):
            return await self._store.put(job.key, body, condition=condition, metadata=job.metadata)

    async def _read(self, job: Job, fd: Fd, offset: int, length: int) -> bytes:
        data = await self._staging.disk.pread(fd, offset, length)
        if len(data) != length:
            raise IntegrityError(
                f"the staging file of content {job.content} ends at {offset + len(data)}, not {job.size}"
            )
        if length > _UNBUDGETED_BYTES:
            await self._env.run_blocking(check_blocks, job, offset, data)
        else:
            check_blocks(job, offset, data)
        return data

    async def _put_parts(self, job: Job, fd: Fd, condition: Condition) -> ObjectInfo:
        upload = await self._begin(job)
        completed = False
        try:
            parts = await self._send_parts(job, fd, upload)
            with deadline(self.request_s(job.size // 16), f"completion of {job.key!r}"):
                info = await self._complete(upload, parts, condition)
            completed = True
        finally:
            if completed:
                self._namespace.bucket.upload_ended(upload.upload_id)
            else:
                await self.abort(upload)
            self._active.discard(upload.upload_id)
        return info

    async def _begin(self, job: Job) -> Upload:
        """Begin an upload, noted so that whatever happens it is not left for ever."""
        bucket = self._namespace.bucket
        note = Upload(job.key, f"{_NOTE}{self._env.token()}@{self._env.wall_ns()}")
        bucket.upload_begun(note.upload_id, job.key)
        with suppress(SpaceError):
            await self._namespace.state.sync(self._namespace.state.record("upload", key=job.key))
        begun = False
        try:
            with deadline(self.request_s(), f"begin of {job.key!r}"):
                upload = await self._store.begin_upload(job.key, metadata=job.metadata)
            begun = True
        finally:
            if not begun:
                self.left_over.append(note)
        self._active.add(upload.upload_id)
        bucket.upload_begun(upload.upload_id, job.key)
        bucket.upload_ended(note.upload_id)
        return upload

    async def clean_up(self) -> None:
        """Abort what is left over. What cannot be now stays left over."""
        left_over, self.left_over = self.left_over, []
        for upload in left_over:
            if not upload.upload_id.startswith(_NOTE):
                await self.abort(upload)
                continue
            try:
                await self._abort_unnamed(upload)
            except CkptfsError as error:
                log.info("the uploads of %r cannot be looked at now: %s", upload.key, error)
                self.left_over.append(upload)

    async def _abort_unnamed(self, note: Upload) -> None:
        """Abort an upload that may have been begun without an answer: one of the key, as old as the note, not known."""
        begun_ns = int(note.upload_id.rpartition("@")[2])
        for found in await self._store.list_uploads(note.key):
            is_old_enough = found.begun_ns == 0 or found.begun_ns >= begun_ns - _CLOCK_SKEW_NS
            if found.key == note.key and is_old_enough and found.upload_id not in self._active:
                await self._store.abort_upload(found)
        self._namespace.bucket.upload_ended(note.upload_id)

    async def _complete(self, upload: Upload, parts: list[Part], condition: Condition) -> ObjectInfo:
        try:
            return await self._store.complete_upload(upload, parts, condition=condition)
        except ObjectNotFoundError as error:
            raise StoreUnavailableError(f"the upload of {upload.key!r} is gone: it was completed or aborted") from error

    async def abort(self, upload: Upload) -> None:
        """Abort an upload, for a bounded time and cancelled or not. If it cannot be, it is left over."""
        gone = False
        with trio.move_on_after(_ABORT_S, shield=True):
            try:
                await self._store.abort_upload(upload)
            except CkptfsError as error:
                log.info("the upload of %r cannot be aborted now: %s", upload.key, error)
            else:
                gone = True
        if gone:
            self._namespace.bucket.upload_ended(upload.upload_id)
        else:
            self.left_over.append(upload)

    async def _send_parts(self, job: Job, fd: Fd, upload: Upload) -> list[Part]:
        able = self._store.capabilities
        length = part_size(job.size, self._limits.part_bytes, able.part_bytes_min, able.part_count_max)
        parts: list[Part] = []
        failures: list[CkptfsError | OSError] = []
        slots = trio.Semaphore(self._limits.file_part_count)

        async def send(number: int, taken: int) -> None:
            try:
                offset = (number - 1) * length
                body = await self._read(job, fd, offset, min(length, job.size - offset))
                with deadline(self.request_s(len(body)), f"part {number} of {job.key!r}"):
                    parts.append(await self._store.put_part(upload, number, body))
            except (CkptfsError, OSError) as error:
                failures.append(error)
                nursery.cancel_scope.cancel()
            finally:
                self.budget.release(taken)
                slots.release()

        async with trio.open_nursery() as nursery:
            for number in range(1, -(-job.size // length) + 1):
                await slots.acquire()
                taken = await self.budget.acquire(length)
                nursery.start_soon(send, number, taken)
        if failures:
            raise failures[0]
        return sorted(parts, key=lambda part: part.number)


def check_blocks(job: Job, offset: int, data: bytes) -> None:
    """Prove ``data``, from ``offset`` (a multiple of the block) of the content, against the digests.

    Raises:
        IntegrityError: a block is not what was sealed.
    """
    if len(job.digests) != -(-job.size // BLOCK_BYTES) * DIGEST_BYTES:
        raise IntegrityError(f"content {job.content} has no digests of its {job.size} bytes")
    view = memoryview(data)
    for start in range(0, len(data), BLOCK_BYTES):
        number = (offset + start) // BLOCK_BYTES
        found = xxhash.xxh3_128_digest(view[start : start + BLOCK_BYTES])
        if found != job.digests[number * DIGEST_BYTES : (number + 1) * DIGEST_BYTES]:
            raise IntegrityError(
                f"{job.key!r}: block {number} of content {job.content} in staging is not what was sealed"
            )
