"""The retrying wrapper against a store whose requests and answers get lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing

from ckptfs.env import RealEnv
from ckptfs.errors import (
    PERMANENT,
    ObjectNotFoundError,
    PreconditionError,
    StoreCorruptionError,
    StoreDeniedError,
    StoreError,
    StoreUnavailableError,
)
from ckptfs.objectstore.base import ABSENT, Condition
from ckptfs.objectstore.memory import MemoryBucket, MemoryObjectStore
from ckptfs.objectstore.retry import TOKEN_NAME, RetryingObjectStore, RetryPolicy
from ckptfs.types import Key

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

KEY = Key("dir/key")
LOST = StoreUnavailableError("connection reset")


class MockedTimeEnv(RealEnv):
    """The clock of trio, which jumps in these tests."""

    def monotonic_s(self) -> float:
        return trio.current_time()


class FaultyStore:
    """A store between which and its user requests and answers get lost, as a test says beforehand.

    ``faults[name]`` is consumed one per call: ``("request", error)`` raises without doing anything, ``("answer",
    error)`` does it and raises all the same, ``("meanwhile", function)`` does it, awaits the function, and loses the
    answer.
    """

    def __init__(self, store: MemoryObjectStore, **faults: list[tuple[str, Any]]) -> None:
        self.store = store
        self.faults = faults
        self.calls: list[tuple[str, float]] = []

    def __getattr__(self, name: str) -> Any:
        inner = getattr(self.store, name)
        if not callable(inner):
            return inner

        async def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append((name, trio.current_time()))
            queue = self.faults.get(name, [])
            where, what = queue.pop(0) if queue else ("none", None)
            if where == "request":
                raise what
            result = await inner(*args, **kwargs)
            if where == "answer":
                raise what
            if where == "meanwhile":
                await what()
                raise LOST
            return result

        return call


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        with trio.fail_after(10_000):
            await main()

    trio.run(bounded, clock=trio.testing.MockClock(autojump_threshold=0))


def make(
    policy: RetryPolicy | None = None, **faults: list[tuple[str, Any]]
) -> tuple[Any, FaultyStore, MemoryObjectStore]:
    env = MockedTimeEnv()
    bucket = MemoryBucket()
    faulty = FaultyStore(MemoryObjectStore(env, bucket), **faults)
    return RetryingObjectStore(faulty, env, policy), faulty, MemoryObjectStore(env, bucket)


async def content(store: Any, key: Key = KEY) -> bytes:
    info = await store.head(key)
    buffer = bytearray(info.size)
    await store.get_range(key, 0, memoryview(buffer))
    return bytes(buffer)


def test_what_may_succeed_later_is_tried_again_and_counted() -> None:
    async def main() -> None:
        faults = [("request", LOST), ("request", StoreCorruptionError("BadDigest")), ("answer", LOST)]
        store, faulty, _ = make(put=faults)
        await store.put(KEY, b"x")
        assert [name for name, _ in faulty.calls] == ["put"] * 4
        assert store.meter == {"put": {"retried": 3, "ok": 1}}

    run(main)


@pytest.mark.parametrize("kind", PERMANENT)
def test_what_is_permanent_is_tried_once(kind: type[StoreError]) -> None:
    async def main() -> None:
        store, faulty, _ = make(get_range=[("request", kind("no"))])
        with pytest.raises(kind):
            await store.get_range(KEY, 0, memoryview(bytearray(1)))
        assert len(faulty.calls) == 1
        assert store.meter == {"get_range": {kind.__name__: 1}}

    run(main)


def test_the_store_decides_how_long_to_wait_at_least() -> None:
    async def main() -> None:
        store, faulty, _ = make(head=[("request", StoreUnavailableError("503", retry_after_s=17.0))])
        with pytest.raises(ObjectNotFoundError):
            await store.head(KEY)
        (_, first), (_, second) = faulty.calls
        assert 17.0 <= second - first <= 17.2

    run(main)


def test_delays_grow_with_full_jitter_and_are_bounded() -> None:
    policy = RetryPolicy(delay_first_s=0.1, delay_max_s=10.0)
    assert [round(policy.delay_s(n, 1.0, None), 3) for n in (1, 2, 3, 7, 8, 1000)] == [0.1, 0.2, 0.4, 6.4, 10.0, 10.0]
    assert policy.delay_s(5, 0.0, None) == 0.0
    assert policy.delay_s(5, 0.0, 3.0) == 3.0


def test_attempts_are_bounded() -> None:
    async def main() -> None:
        store, faulty, _ = make(RetryPolicy(attempt_count_max=4, deadline_s=1e6), probe=[("request", LOST)] * 100)
        with pytest.raises(StoreUnavailableError, match="tried 4 times"):
            await store.probe()
        assert len(faulty.calls) == 4
        assert store.meter == {"probe": {"retried": 3, "StoreUnavailableError": 1}}

    run(main)


def test_no_attempt_begins_after_the_deadline() -> None:
    async def main() -> None:
        store, faulty, _ = make(
            RetryPolicy(attempt_count_max=10**6, deadline_s=60.0), probe=[("request", LOST)] * 10**4
        )
        with pytest.raises(StoreUnavailableError, match="tried"):
            await store.probe()
        assert 5 <= len(faulty.calls) <= 200
        assert faulty.calls[-1][1] - faulty.calls[0][1] <= 60.0

    run(main)


def test_a_wait_longer_than_the_deadline_is_not_begun() -> None:
    async def main() -> None:
        store, _, _ = make(probe=[("request", StoreUnavailableError("503", retry_after_s=3600.0))])
        begun = trio.current_time()
        with pytest.raises(StoreUnavailableError) as caught:
            await store.probe()
        assert trio.current_time() == begun
        assert caught.value.retry_after_s == 3600.0

    run(main)


def test_a_lost_answer_to_put_if_absent_is_a_success() -> None:
    async def main() -> None:
        store, _, plain = make(put=[("answer", LOST)])
        info = await store.put(KEY, b"mine", condition=ABSENT, metadata={"a": "b"})
        assert info.etag == (await plain.head(KEY)).etag
        assert info.metadata == {"a": "b"}
        assert store.meter["put"] == {"retried": 1, "resolved": 1}

    run(main)


def test_a_lost_answer_to_put_if_etag_is_a_success() -> None:
    async def main() -> None:
        store, _, plain = make(put=[("answer", LOST), ("answer", LOST)])
        old = await plain.put(KEY, b"old")
        info = await store.put(KEY, b"new", condition=Condition(etag=old.etag))
        assert info.etag == (await plain.head(KEY)).etag
        assert await content(plain) == b"new"

    run(main)


def test_the_object_of_another_after_a_lost_request_is_a_conflict() -> None:
    async def main() -> None:
        store, _, plain = make(put=[("request", LOST)])
        await plain.put(KEY, b"theirs")
        with pytest.raises(PreconditionError):
            await store.put(KEY, b"mine", condition=ABSENT)
        assert await content(plain) == b"theirs"

    run(main)


def test_the_same_bytes_of_another_are_a_conflict_all_the_same() -> None:
    async def main() -> None:
        store, _, plain = make(put=[("request", LOST)])
        await plain.put(KEY, b"same", metadata={TOKEN_NAME: "0" * 32})
        with pytest.raises(PreconditionError):
            await store.put(KEY, b"same", condition=ABSENT)

    run(main)


def test_a_success_that_another_replaced_meanwhile_is_a_conflict() -> None:
    async def main() -> None:
        store, faulty, plain = make()

        async def replace() -> None:
            await plain.put(KEY, b"theirs")

        faulty.faults["put"] = [("meanwhile", replace)]
        with pytest.raises(PreconditionError):
            await store.put(KEY, b"mine", condition=ABSENT)
        assert await content(plain) == b"theirs"

    run(main)


def test_without_a_look_nothing_is_claimed() -> None:
    async def main() -> None:
        store, _, plain = make(put=[("answer", LOST)], head=[("request", LOST)] * 1000)
        with pytest.raises(StoreUnavailableError):
            await store.put(KEY, b"mine", condition=ABSENT)
        assert await content(plain) == b"mine"

    run(main)


def test_a_lost_answer_to_a_completion_is_a_success() -> None:
    async def main() -> None:
        for condition in (Condition(), ABSENT):
            store, _, plain = make(complete_upload=[("answer", LOST)])
            upload = await store.begin_upload(KEY, metadata={"a": "b"})
            part = await store.put_part(upload, 1, b"part")
            info = await store.complete_upload(upload, [part], condition=condition)
            assert (info.size, info.metadata) == (4, {"a": "b"})
            assert info.etag == (await plain.head(KEY)).etag

    run(main)


def test_a_completion_of_an_earlier_life_is_recognised() -> None:
    async def main() -> None:
        store, _, plain = make()
        upload = await store.begin_upload(KEY)
        part = await store.put_part(upload, 1, b"part")
        await plain.complete_upload(upload, [part])  # and the process died before it could write that down
        info = await store.complete_upload(upload, [part], condition=ABSENT)
        assert info.etag == (await plain.head(KEY)).etag

    run(main)


def test_an_upload_that_is_gone_is_not_found() -> None:
    async def main() -> None:
        store, _, plain = make()
        await plain.put(KEY, b"theirs")
        upload = await store.begin_upload(KEY)
        part = await store.put_part(upload, 1, b"part")
        await store.abort_upload(upload)
        with pytest.raises(ObjectNotFoundError):
            await store.complete_upload(upload, [part])

    run(main)


def test_a_lost_answer_to_a_conditional_copy_is_a_success() -> None:
    async def main() -> None:
        for metadata in (None, {"own": "1"}):
            store, _, plain = make(copy=[("answer", LOST)])
            source = await store.put(Key("from"), b"bytes", metadata={"kind": "source"})
            info = await store.copy(source.key, KEY, etag=source.etag, condition=ABSENT, metadata=metadata)
            assert info.etag == (await plain.head(KEY)).etag
            assert (await store.head(KEY)).metadata == (metadata or {"kind": "source"})

    run(main)


def test_a_copy_over_the_object_of_another_is_a_conflict() -> None:
    async def main() -> None:
        store, _, plain = make(copy=[("request", LOST)])
        source = await store.put(Key("from"), b"bytes")
        await plain.put(KEY, b"theirs")
        with pytest.raises(PreconditionError):
            await store.copy(source.key, KEY, etag=source.etag, condition=ABSENT)

    run(main)


def test_a_lost_answer_to_delete_if_etag_is_a_success() -> None:
    async def main() -> None:
        store, _, plain = make(delete=[("answer", LOST)])
        info = await plain.put(KEY, b"x")
        await store.delete(KEY, condition=Condition(etag=info.etag))
        assert store.meter["delete"] == {"retried": 1, "resolved": 1}

    run(main)


def test_delete_if_etag_of_what_another_wrote_is_a_conflict() -> None:
    async def main() -> None:
        store, faulty, plain = make()
        info = await plain.put(KEY, b"x")

        async def replace() -> None:
            await plain.put(KEY, b"theirs")

        faulty.faults["delete"] = [("meanwhile", replace)]
        with pytest.raises(PreconditionError):
            await store.delete(KEY, condition=Condition(etag=info.etag))
        assert await content(plain) == b"theirs"

    run(main)


def test_the_token_is_in_the_store_and_in_no_answer() -> None:
    async def main() -> None:
        store, _, plain = make()
        info = await store.put(KEY, b"x")
        token = (await plain.head(KEY)).metadata[TOKEN_NAME]
        assert len(token) == 32
        assert info.metadata == {}
        assert (await store.head(KEY)).metadata == {}
        await store.put(KEY, b"x")
        assert (await plain.head(KEY)).metadata[TOKEN_NAME] != token

    run(main)


def test_a_cancelled_wait_ends_at_once() -> None:
    async def main() -> None:
        store, _, _ = make(probe=[("request", StoreUnavailableError("503", retry_after_s=30.0))])
        with trio.move_on_after(1.0) as scope:
            await store.probe()
        assert scope.cancelled_caught
        assert trio.current_time() < 1e9

    run(main)


def test_a_denied_call_says_what_to_do() -> None:
    async def main() -> None:
        store, _, _ = make(probe=[("request", StoreDeniedError("403", hint="check the key"))])
        with pytest.raises(StoreDeniedError) as caught:
            await store.probe()
        assert caught.value.hint == "check the key"

    run(main)
