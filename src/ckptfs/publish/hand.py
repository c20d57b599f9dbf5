"""Takes one decided step about one key, and notes in the namespace what came of it.

Every change in the bucket is conditional on the object that was known when it was decided. When the condition does not
hold, the object is looked at: it may be the mount's own (the answer to an earlier attempt was lost), or somebody
else's, and then it stands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptfs.errors import (
    IntegrityError,
    ObjectNotFoundError,
    PreconditionError,
    StoreCorruptionError,
    StoreUnavailableError,
)
from ckptfs.objectstore.base import ABSENT, Condition, ObjectInfo
from ckptfs.publish.compare import has_digests, is_copy
from ckptfs.publish.conflict import Conflicts
from ckptfs.publish.plan import Copy, Delete, Kind, Lost, Materialize, Probe, Put, PutMarker
from ckptfs.publish.rescue import Rescue
from ckptfs.publish.upload import (
    DIGEST_NAME,
    MARK_NAME,
    Uploader,
    deadline,
    job_of,
    mark_of,
    marked_content,
    root_digest,
)
from ckptfs.publish.view import View
from ckptfs.types import NO_CONTENT, ContentId, ContentState, ETag, Key

if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Set as AbstractSet

    from ckptfs.env import Env
    from ckptfs.namespace import Namespace
    from ckptfs.namespace.rows import Content
    from ckptfs.objectstore.base import ObjectStore
    from ckptfs.publish.hooks import Hooks
    from ckptfs.publish.upload import Job, PublishLimits
    from ckptfs.staging import Staging

Step = Put | Copy | Delete | PutMarker | Probe | Materialize | Lost


class Hand:
    """Takes steps. Whatever it raises, the namespace tells the truth about the bucket or says that it is uncertain.

    Args:
        env: threads and waiting.
        store: the bucket.
        namespace: both sides.
        staging: the bytes.
        limits: bounds.
        hooks: what others do.
        waits: which key waits for which, and
        stuck: which keys nobody should wait for, both for the view.
    """

    def __init__(
        self,
        env: Env,
        store: ObjectStore,
        namespace: Namespace,
        staging: Staging,
        limits: PublishLimits,
        hooks: Hooks,
        waits: Mapping[Key, Key],
        stuck: AbstractSet[Key],
    ) -> None:
        self._store = store
        self._namespace = namespace
        self._bucket = namespace.bucket
        self._leaving: set[Key] = set()
        self._putting: dict[ContentId, Key] = {}
        self._unsynced: set[Key] = set()
        self._rescue = Rescue(namespace, staging, hooks)
        self.view = View(
            namespace,
            hooks.in_use,
            self._leaving,
            self._putting,
            waits,
            stuck,
            self._unsynced,
            self._rescue.secured,
        )
        self.uploader = Uploader(env, store, namespace, staging, limits)
        self.conflicts = Conflicts(namespace, hooks)

    async def take(self, key: Key, step: Step) -> None:
        """Take one step, which was decided since the last await.

        Raises:
            StoreError, OSError, CkptfsError: it could not be taken; look again later.
        """
        match step:
            case Put():
                await self._put(key, step)
            case Copy():
                await self._copy(key, step)
            case Delete():
                await self._delete(key, step.etag)
            case PutMarker():
                await self._put_marker(key)
            case Probe():
                await self._probe(key)
            case Materialize():
                await self._rescue.secure(step.content)
            case Lost():
                await self._rescue.find(key, step.content, self._leaving)

    # --- putting

    def _job(self, key: Key, content_id: ContentId) -> Job:
        content = self._namespace.contents.get(content_id)
        assert content is not None, f"{key}: content {content_id} was there when it was decided"
        inode = self._namespace.state.inodes.get(content.ino)
        return job_of(content, inode, self._namespace.state.mark, key)

    async def _put(self, key: Key, step: Put) -> None:
        job = self._job(key, step.content)
        content = self._namespace.contents.get(step.content)
        assert content is not None
        if content.state in {ContentState.SEALED, ContentState.DURABLE, ContentState.REPLICATED}:
            self._namespace.contents.move(content, ContentState.PUBLISHING)
        self._begin_change(key)
        self._putting[step.content] = key
        try:
            await self._guard(key, step.over)
            await self.uploader.put(job, _over(step.over))
            info = await self._verified(job)
        except PreconditionError:
            await self._met_other(job, step.over)
        except (IntegrityError, FileNotFoundError) as error:
            self._rescue.wrong_bytes(self.view, step.content, error)
        else:
            self._holds(key, info, step.content)
        finally:
            del self._putting[step.content]
            self._end_change(key)

    def _begin_change(self, key: Key) -> None:
        """The object of ``key`` is about to be changed: nobody counts on it, so staged bytes of its content stay."""
        self._bucket.try_begun(key)
        self._leaving.add(key)
        occupant = self._occupant(key)
        if occupant is not None and occupant.key == key:
            source = self.view.source(occupant, but=key, certain=True)
            occupant.key, occupant.etag = (Key(""), ETag("")) if source is None else (source.key, source.etag)
            self._mark(occupant)

    def _end_change(self, key: Key) -> None:
        """The change was made, or not; if it is certain that it was not, the object counts again."""
        self._leaving.discard(key)
        occupant = self._occupant(key)
        obligation = self._bucket.obligation(key)
        row = self._bucket.object(key)
        if (
            occupant is not None
            and row is not None
            and not occupant.key
            and obligation is not None
            and not obligation.tried
        ):
            occupant.key, occupant.etag = key, row.etag
            self._mark(occupant)

    def _occupant(self, key: Key) -> Content | None:
        known = self._bucket.object(key)
        return None if known is None else self._namespace.contents.get(known.content)

    def _mark(self, content: Content) -> None:
        self._namespace.state.contents.mark(content.id)
        self._namespace.state.touch()

    async def _guard(self, key: Key, over: ETag | None) -> None:
        """For stores without conditions: look before the change. It leaves a gap, but a short one."""
        if self._store.capabilities.conditional_put:
            return
        await self._expect(key, over)

    async def _expect(self, key: Key, over: ETag | None) -> None:
        try:
            found = (await self._head(key)).etag
        except ObjectNotFoundError:
            found = None
        if found != over:
            raise PreconditionError(f"{key!r} is not the object that is known")

    async def _head(self, key: Key) -> ObjectInfo:
        with deadline(self.uploader.request_s(), f"look at {key!r}"):
            return await self._store.head(key)

    async def _verified(self, job: Job) -> ObjectInfo:
        """The object as the bucket has it, if it is what was put.

        Raises:
            StoreCorruptionError: the store took it and has something else.
            PreconditionError: somebody replaced it already.
        """
        try:
            info = await self._head(job.key)
        except ObjectNotFoundError as error:
            raise StoreCorruptionError(f"{job.key!r} was put and is not there") from error
        if self._is(info, job):
            return info
        if self._ours(info) is not None:
            self._holds(job.key, info, NO_CONTENT)
            raise StoreCorruptionError(f"{job.key!r}: the store has {info.size} bytes of the {job.size} that it took")
        raise PreconditionError(f"{job.key!r} was replaced as soon as it was put")

    @staticmethod
    def _is(info: ObjectInfo, job: Job) -> bool:
        return info.size == job.size and (info.metadata or {}).get(DIGEST_NAME, "") == job.root != ""

    def _ours(self, info: ObjectInfo) -> ContentId | None:
        """Which content this namespace put there as this object; ``None`` when others put it.

        ``NO_CONTENT`` when it is not known any more, or not whole.
        """
        number = marked_content(self._namespace.state.mark, info)
        if number is None:
            return None
        content = self._namespace.contents.get(number)
        if content is None or content.size != info.size:
            return NO_CONTENT
        if content.digests and (info.metadata or {}).get(DIGEST_NAME) != root_digest(content.digests):
            return NO_CONTENT
        return number

    def _holds(self, key: Key, info: ObjectInfo, content_id: ContentId) -> None:
        """Note that the bucket has ``info`` now, and that this is ``content_id`` if anybody still knows that."""
        content = self._namespace.contents.get(content_id)
        self._bucket.holds(key, info, NO_CONTENT if content is None else content_id)
        self._bucket.try_settled(key)
        if content is None:
            return
        content.key, content.etag = key, info.etag
        self._mark(content)
        if content.state is ContentState.PUBLISHING:
            self._namespace.contents.move(content, ContentState.PUBLISHED)

    async def _met_other(self, job: Job, over: ETag | None) -> None:
        """The object under the job's key is not the known one: find out what it is and note it."""
        key = job.key
        try:
            info = await self._head(key)
        except ObjectNotFoundError:
            self._bucket.lacks(key)
            self._bucket.try_settled(key)
            return
        if self._is(info, job) or await self._has_bytes(info, job):
            self._holds(key, info, job.content)
        elif (ours := self._ours(info)) is not None:
            self._holds(key, info, ours)
        elif info.etag == over:
            raise StoreUnavailableError(f"{key!r}: the store refuses a condition that holds")
        else:
            self.conflicts.settle(key, info)

    async def _has_bytes(self, info: ObjectInfo, job: Job) -> bool:
        """Whether an object that says nothing about its digest has exactly the job's bytes: then it is no conflict."""
        if info.size != job.size or DIGEST_NAME in (info.metadata or {}) or (job.size and not job.digests):
            return False
        return await has_digests(self._store, self.uploader, info, job.digests)

    # --- copying

    async def _copy(self, key: Key, step: Copy) -> None:
        job = self._job(key, step.content)
        self._begin_change(key)
        try:
            await self._guard(key, step.over)
            metadata = job.metadata if job.digests or not job.size else await self._marked(key, step)
            with deadline(self.uploader.request_s(job.size), f"copy of {step.source.key!r} to {key!r}"):
                copied = await self._store.copy(
                    step.source.key,
                    key,
                    etag=step.source.etag,
                    condition=_over(step.over),
                    metadata=metadata,
                )
            info = await self._verified(job) if job.digests or not job.size else await self._verified_copy(job, copied)
        except (PreconditionError, ObjectNotFoundError):
            if await self._source_stands(step):
                await self._met_other_copy(job, step)
        else:
            await self._holds_copy(key, info, job)
        finally:
            self._end_change(key)

    async def _marked(self, key: Key, step: Copy) -> dict[str, str]:
        """Metadata for a copy of an object that others made: its own, and that this namespace put it there."""
        info = await self._head(step.source.key)
        if info.etag != step.source.etag:
            raise PreconditionError(f"{step.source.key!r} is not the object that is known")
        return {**(info.metadata or {}), MARK_NAME: mark_of(self._namespace.state.mark, key, step.content)}

    async def _holds_copy(self, key: Key, info: ObjectInfo, job: Job) -> None:
        """As :meth:`_holds`. A copy that does not say whose it is must be on disk before its source goes."""
        self._holds(key, info, job.content)
        if job.digests or not job.size:
            return
        self._unsynced.add(key)
        try:
            await self._namespace.state.sync(self._namespace.state.record("copied", key=key, content=job.content))
        finally:
            self._unsynced.discard(key)

    async def _verified_copy(self, job: Job, copied: ObjectInfo) -> ObjectInfo:
        """As :meth:`_verified`, for a content without known digests: the store copied one generation by itself."""
        try:
            info = await self._head(job.key)
        except ObjectNotFoundError as error:
            raise StoreCorruptionError(f"{job.key!r} was copied and is not there") from error
        if info.etag != copied.etag:
            raise PreconditionError(f"{job.key!r} was replaced as soon as it was put")
        if info.size != job.size:
            self._holds(job.key, info, NO_CONTENT)
            raise StoreCorruptionError(f"{job.key!r}: the store made a copy of {info.size} bytes of {job.size}")
        return info

    async def _source_stands(self, step: Copy) -> bool:
        """Whether the source of a copy is as it was known. If not, that is noted: no other copy is tried from it."""
        source = step.source
        try:
            found: ObjectInfo | None = await self._head(source.key)
        except ObjectNotFoundError:
            found = None
        if found is not None and found.etag == source.etag:
            return True
        row = self._bucket.object(source.key)
        if row is not None and row.etag == source.etag and source.key not in self._leaving:
            if found is None:
                self._bucket.lacks(source.key)
            else:
                row.content = NO_CONTENT
                self._namespace.state.objects.mark(source.key)
                self._namespace.state.touch()
        return False

    async def _met_other_copy(self, job: Job, step: Copy) -> None:
        """The target of a copy is not the known object. Without digests, the source tells if it is an earlier copy."""
        if job.digests or not job.size:
            await self._met_other(job, step.over)
            return
        try:
            info = await self._head(job.key)
        except ObjectNotFoundError:
            self._bucket.lacks(job.key)
            self._bucket.try_settled(job.key)
            return
        if info.size == job.size and await is_copy(self._store, self.uploader, info, step.source):
            self._holds(job.key, info, job.content)
        else:
            await self._met_other(job, step.over)

    # --- deleting, markers, looking

    async def _delete(self, key: Key, etag: ETag) -> None:
        self._begin_change(key)
        try:
            if not self._store.capabilities.conditional_delete:
                await self._expect(key, etag)
            with deadline(self.uploader.request_s(), f"delete of {key!r}"):
                await self._store.delete(key, condition=Condition(etag=etag))
        except PreconditionError:
            await self._met_other_delete(key, etag)
        else:
            self._bucket.lacks(key)
            self._bucket.try_settled(key)
        finally:
            self._end_change(key)

    async def _met_other_delete(self, key: Key, etag: ETag) -> None:
        try:
            info = await self._head(key)
        except ObjectNotFoundError:
            self._bucket.lacks(key)
            self._bucket.try_settled(key)
            return
        if (ours := self._ours(info)) is not None:
            self._holds(key, info, ours)
        elif info.etag == etag:
            raise StoreUnavailableError(f"{key!r}: the store refuses a condition that holds")
        else:
            self.conflicts.settle(key, info)

    async def _put_marker(self, key: Key) -> None:
        self._bucket.try_begun(key)
        metadata = {MARK_NAME: mark_of(self._namespace.state.mark, key, NO_CONTENT)}
        try:
            with deadline(self.uploader.request_s(), f"put of {key!r}"):
                info = await self._store.put(key, b"", condition=ABSENT, metadata=metadata)
        except PreconditionError:
            info = await self._head(key)
        self._holds(key, info, NO_CONTENT)

    async def _probe(self, key: Key) -> None:
        """Look what an attempt left whose end nobody saw."""
        try:
            info: ObjectInfo | None = await self._head(key)
        except ObjectNotFoundError:
            info = None
        known = self._bucket.object(key)
        if known is not None and info is not None and known.etag == info.etag:
            self._bucket.try_settled(key)
            self._end_change(key)
        elif info is not None and (ours := self._ours(info)) is not None:
            self._holds(key, info, ours)
        elif self._is_for_listing(key, gone=info is None):
            self._bucket.try_settled(key)
        elif info is None:
            self._bucket.lacks(key)
            self._bucket.try_settled(key)
        else:
            self.conflicts.settle(key, info)

    def _is_for_listing(self, key: Key, *, gone: bool) -> bool:
        """Whether publication has nothing to settle about what others did to the object: nothing new is to go there.

        The next listing shows it. But an object that is gone may have been deleted by an attempt of ours whose answer
        was lost, before it was wanted again: if it can be brought back it must be.
        """
        known, wanted = self._bucket.object(key), self.view.wanted(key)
        if known is None or wanted.kind in {Kind.AS_IS, Kind.MARKER}:
            return True
        can_bring = wanted.staged or wanted.source is not None
        return known.content == wanted.content != NO_CONTENT and not (gone and can_bring)


def _over(etag: ETag | None) -> Condition:
    """The condition that the known object, or its absence, stands for."""
    return ABSENT if etag is None else Condition(etag=etag)
