"""A wrapper that tries again, and finds out what an answer that was lost would have said.

Everything that is not in :data:`ckptfs.errors.PERMANENT` is tried again after a random part of an exponentially growing
delay, or after the time that the store asked for, within bounds of attempts and time.

**Lost answers.** When a conditional call reached the store and its answer did not come back, the next attempt meets its
own success: the precondition does not hold any more, the upload is gone. That is no conflict. Every put, upload and
conditional copy therefore carries the metadata ``ckptfs-put`` with a token that nobody else has; when such an error
follows an attempt with unknown outcome, the object is looked at. It carries our token: the call had succeeded. It does
not: the error stands. Nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from ckptfs.errors import (
    PERMANENT,
    ObjectNotFoundError,
    PreconditionError,
    StoreCorruptionError,
    StoreError,
    StoreUnavailableError,
)
from ckptfs.objectstore.base import ANY, Condition

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ckptfs.env import Env
    from ckptfs.objectstore.base import Body, Capabilities, ListPage, ObjectInfo, ObjectStore, Part, Upload
    from ckptfs.types import ETag, Key

T = TypeVar("T")
Resolve = Callable[[], Awaitable[T | None]]

TOKEN_NAME = "ckptfs-put"  # noqa: S105 - no secret
_TOKEN_BYTES = 16


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often, how long and how patiently.

    Attributes:
        attempt_count_max: attempts in all.
        deadline_s: no attempt begins later than this after the first; one that runs is not cut off.
        delay_first_s: upper end of the first random delay; doubles with every attempt.
        delay_max_s: upper end of any delay, but for what the store asks for.
    """

    attempt_count_max: int = 10
    deadline_s: float = 60.0
    delay_first_s: float = 0.1
    delay_max_s: float = 10.0

    def __post_init__(self) -> None:
        assert self.attempt_count_max >= 1, "there is a first attempt"
        assert 0 < self.delay_first_s <= self.delay_max_s, "delays grow"

    def delay_s(self, failed_count: int, random: float, asked_s: float | None) -> float:
        """Seconds to wait after ``failed_count`` attempts: full jitter, and never less than the store asked for."""
        assert failed_count >= 1, "a first attempt does not wait"
        ceiling_s = min(self.delay_max_s, self.delay_first_s * (1 << min(failed_count - 1, 30)))
        return max(random * ceiling_s, asked_s or 0.0)


class RetryingObjectStore:
    """Any store, tried again.

    User metadata has ``ckptfs-put`` and its token less room than the store underneath gives; the token is in no answer.
    A begin_upload whose answer is lost leaves an upload that nobody names; :meth:`list_uploads` shows it.

    Args:
        store: what to try; closed with this.
        env: clock and jitter.
        policy: bounds.

    Attributes:
        meter: calls so far, by name and outcome: ``ok``, ``retried`` (an attempt that failed and was followed by
        another),
            ``resolved`` (a lost answer that was found to be a success), or the name of the error that was raised.
    """

    def __init__(self, store: ObjectStore, env: Env, policy: RetryPolicy | None = None) -> None:
        self._store = store
        self._env = env
        self._policy = policy or RetryPolicy()
        self.meter: dict[str, dict[str, int]] = {}

    @property
    def capabilities(self) -> Capabilities:
        return self._store.capabilities

    @property
    def url(self) -> str:
        return self._store.url

    async def probe(self) -> None:
        await self._retry("probe", self._store.probe)

    async def head(self, key: Key) -> ObjectInfo:
        return _without_token(await self._retry("head", lambda: self._store.head(key)))

    async def get_range(self, key: Key, offset: int, into: memoryview, *, etag: ETag | None = None) -> None:
        await self._retry("get_range", lambda: self._store.get_range(key, offset, into, etag=etag))

    async def put(
        self, key: Key, body: Body, *, condition: Condition = ANY, metadata: Mapping[str, str] | None = None
    ) -> ObjectInfo:
        token = self._env.token(_TOKEN_BYTES)
        marked = _with_token(metadata, token)
        return _without_token(
            await self._retry(
                "put",
                lambda: self._store.put(key, body, condition=condition, metadata=marked),
                resolve=lambda: self._find(key, token),
            )
        )

    async def begin_upload(self, key: Key, *, metadata: Mapping[str, str] | None = None) -> Upload:
        token = self._env.token(_TOKEN_BYTES)
        marked = _with_token(metadata, token)
        upload = await self._retry("begin_upload", lambda: self._store.begin_upload(key, metadata=marked))
        return replace(upload, token=token)

    async def put_part(self, upload: Upload, number: int, body: Body) -> Part:
        return await self._retry("put_part", lambda: self._store.put_part(upload, number, body))

    async def complete_upload(self, upload: Upload, parts: Sequence[Part], *, condition: Condition = ANY) -> ObjectInfo:
        # The lost answer may also have been to an earlier life of the process: the token is the upload's.
        return _without_token(
            await self._retry(
                "complete_upload",
                lambda: self._store.complete_upload(upload, parts, condition=condition),
                resolve=(lambda: self._find(upload.key, upload.token)) if upload.token else None,
                is_ambiguous=True,
            )
        )

    async def abort_upload(self, upload: Upload) -> None:
        await self._retry("abort_upload", lambda: self._store.abort_upload(upload))

    async def list_uploads(self, prefix: str = "") -> Sequence[Upload]:
        return await self._retry("list_uploads", lambda: self._store.list_uploads(prefix))

    async def list_page(
        self, prefix: str = "", *, delimiter: str = "", token: str | None = None, limit: int = 1000
    ) -> ListPage:
        return await self._retry(
            "list_page", lambda: self._store.list_page(prefix, delimiter=delimiter, token=token, limit=limit)
        )

    async def delete(self, key: Key, *, condition: Condition = ANY) -> None:
        await self._retry(
            "delete",
            lambda: self._store.delete(key, condition=condition),
            resolve=lambda: self._find_absent(key),
        )

    async def copy(
        self,
        source: Key,
        target: Key,
        *,
        etag: ETag,
        condition: Condition = ANY,
        metadata: Mapping[str, str] | None = None,
    ) -> ObjectInfo:
        resolve = None
        if condition != ANY:
            # A token needs metadata of our own, so the source's must be known.
            if metadata is None:
                info = await self.head(source)
                if info.etag != etag:
                    raise PreconditionError(f"{source!r} is no longer the generation {etag!r}")
                metadata = info.metadata
            token = self._env.token(_TOKEN_BYTES)
            metadata = _with_token(metadata, token)

            async def resolve() -> ObjectInfo | None:
                return await self._find(target, token)

        return _without_token(
            await self._retry(
                "copy",
                lambda: self._store.copy(source, target, etag=etag, condition=condition, metadata=metadata),
                resolve=resolve,
            )
        )

    async def aclose(self) -> None:
        await self._store.aclose()

    async def _retry(
        self,
        name: str,
        call: Callable[[], Awaitable[T]],
        *,
        resolve: Resolve[T] | None = None,
        is_ambiguous: bool = False,
    ) -> T:
        """What ``call`` returns in the end.

        Args:
            name: for the meter.
            call: one attempt.
            resolve: finds out whether an attempt whose outcome is not known had succeeded; ``None`` means no.
            is_ambiguous: there may have been such an attempt before this call.
        """
        begun_s = self._env.monotonic_s()
        failed_count = 0
        while True:
            try:
                result = await call()
            except PERMANENT as e:
                if resolve is not None and is_ambiguous and isinstance(e, PreconditionError | ObjectNotFoundError):
                    found = await resolve()
                    if found is not None:
                        self._count(name, "resolved")
                        return found
                self._count(name, type(e).__name__)
                raise
            except StoreError as e:
                is_ambiguous = True
                failed_count += 1
                asked_s = e.retry_after_s if isinstance(e, StoreUnavailableError) else None
                delay_s = self._policy.delay_s(failed_count, self._env.random(), asked_s)
                spent_s = self._env.monotonic_s() - begun_s
                if failed_count == self._policy.attempt_count_max or spent_s + delay_s > self._policy.deadline_s:
                    self._count(name, type(e).__name__)
                    raise _given_up(e, failed_count, spent_s) from e
                self._count(name, "retried")
                await self._env.sleep(delay_s)
            else:
                self._count(name, "ok")
                return result

    async def _find(self, key: Key, token: str) -> ObjectInfo | None:
        """The object, if it is the one that carries ``token``.

        Raises:
            StoreError: it could not be looked at, so it is not known.
        """
        try:
            info = await self._retry("head", lambda: self._store.head(key))
        except ObjectNotFoundError:
            return None
        return info if (info.metadata or {}).get(TOKEN_NAME) == token else None

    async def _find_absent(self, key: Key) -> bool | None:
        """``True`` when nothing is there: the generation that should go has gone."""
        try:
            await self._retry("head", lambda: self._store.head(key))
        except ObjectNotFoundError:
            return True
        return None

    def _count(self, name: str, outcome: str) -> None:
        outcomes = self.meter.setdefault(name, {})
        outcomes[outcome] = outcomes.get(outcome, 0) + 1


def _given_up(e: StoreError, attempt_count: int, spent_s: float) -> StoreError:
    message = f"{e} (tried {attempt_count} times in {spent_s:.1f} s)"
    if isinstance(e, StoreUnavailableError):
        return StoreUnavailableError(message, hint=e.hint, retry_after_s=e.retry_after_s)
    if isinstance(e, StoreCorruptionError):
        return StoreCorruptionError(message, hint=e.hint)
    return StoreError(message, hint=e.hint)


def _with_token(metadata: Mapping[str, str] | None, token: str) -> dict[str, str]:
    assert TOKEN_NAME not in (metadata or {}), f"{TOKEN_NAME} is this wrapper's own"
    return {**(metadata or {}), TOKEN_NAME: token}


def _without_token(info: ObjectInfo) -> ObjectInfo:
    if info.metadata is None or TOKEN_NAME not in info.metadata:
        return info
    return replace(info, metadata={name: text for name, text in info.metadata.items() if name != TOKEN_NAME})
