"""The control socket: a real trio server, a service that lives in memory, real sockets."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing

from ckptfs import limits
from ckptfs.admin import ControlServer, registry
from ckptfs.admin.client import ControlClient
from ckptfs.env import RealEnv
from ckptfs.errors import CkptfsError, DeadlineError, IntegrityError, NotMountedError, UsageError
from ckptfs.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

MOUNTPOINT = Path("/mnt/of/the/test")
DEADLINE_S = 20.0


class MemoryService:
    """A mount without files: names that are published when a test says so."""

    def __init__(self) -> None:
        self.unpublished: dict[bytes, int] = {}
        self.changed = trio.Event()
        self.draining = False
        self.waiting_count = 0
        self.stopped = trio.Event()
        self.stop_gate = trio.Event()
        self.stop_gate.set()
        self.stop_count = 0
        self.bug: Exception | None = None

    def write(self, path: bytes, size: int = 10) -> None:
        if self.draining:
            raise CkptfsError("no new writers")
        self.unpublished[path] = size

    def publish(self, path: bytes) -> None:
        del self.unpublished[path]
        self.changed.set()
        self.changed = trio.Event()

    def status(self) -> dict[str, object]:
        if self.bug:
            raise self.bug
        return {"mountpoint": str(MOUNTPOINT), "odd": os.fsdecode(b"\xff")}

    def pending(self) -> dict[str, int]:
        return {"objects": len(self.unpublished), "bytes": sum(self.unpublished.values()), "failing": 0}

    async def wait(self, path: bytes, level: str) -> None:
        if level != "published":
            raise UsageError(f"no such level: {level}", hint="Say published.")
        if path == b"absent":
            raise NotMountedError("no such path")
        self.waiting_count += 1
        try:
            while any(path in {name, b""} for name in self.unpublished):
                await self.changed.wait()
        finally:
            self.waiting_count -= 1

    async def drain(self) -> None:
        self.draining = True
        while self.unpublished:
            await self.changed.wait()

    def resume(self) -> None:
        self.draining = False

    async def stop(self) -> None:
        self.stop_count += 1
        await self.stop_gate.wait()
        self.stopped.set()


class Served:
    """A running server and its service."""

    def __init__(self, service: MemoryService, entry: registry.MountEntry, metrics: Metrics) -> None:
        self.service = service
        self.entry = entry
        self.metrics = metrics

    async def call(self, act: Callable[[ControlClient], Any]) -> Any:
        """Use a client on a thread, as a command does in its process."""

        def run() -> Any:
            with ControlClient(self.entry) as client:
                return act(client)

        return await trio.to_thread.run_sync(run, abandon_on_cancel=True)

    async def raw(self) -> trio.SocketStream:
        stream = trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM)
        directory = os.open(Path(self.entry.socket).parent, os.O_PATH)
        try:
            await stream.connect(f"/proc/self/fd/{directory}/{Path(self.entry.socket).name}")
        finally:
            os.close(directory)
        return trio.SocketStream(stream)


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[Served]:
    registry.prepare()
    service, metrics = MemoryService(), Metrics()
    path = registry.socket_path(MOUNTPOINT)
    server = ControlServer(service, path, RealEnv(), metrics)
    entry = registry.MountEntry(
        mountpoint=str(MOUNTPOINT),
        pid=os.getpid(),
        pid_start=registry.process_start(os.getpid()) or 0,
        store="file:///b",
        cache_dir="/c",
        log="/c/ckptfs.log",
        socket=str(path),
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        yield Served(service, entry, metrics)
        nursery.cancel_scope.cancel()
    assert not path.exists(), "the socket goes with its server"


def under_trio(test: Callable[[Served], Awaitable[None]]) -> Callable[[], None]:
    """Run an async test against a server, within a deadline; afterwards no connection may be left."""

    async def main() -> None:
        with trio.fail_after(DEADLINE_S):
            async with serving() as served:
                await test(served)
                await until(lambda: served.metrics.gauge("control_connections").value == 0, "all connections ended")

    def run() -> None:
        trio.run(main)

    run.__name__ = test.__name__  # type: ignore[attr-defined]
    run.__doc__ = test.__doc__
    return run


async def until(condition: Callable[[], object], what: str) -> None:
    with trio.move_on_after(DEADLINE_S / 2):
        while not condition():  # noqa: ASYNC110 - what is polled belongs to other threads and processes
            await trio.sleep(0.01)
        return
    pytest.fail(f"not within {DEADLINE_S / 2:g} s: {what}")


async def ask(stream: trio.SocketStream, line: bytes) -> dict[str, Any]:
    await stream.send_all(line)
    buffer = b""
    while not buffer.endswith(b"\n"):
        data = await stream.receive_some()
        assert data, f"closed after {buffer!r}"
        buffer += data
    answer = json.loads(buffer)
    assert isinstance(answer, dict)
    return answer


@under_trio
async def test_status_comes_back_as_it_was_given_with_names_of_any_bytes(served: Served) -> None:
    status = await served.call(lambda client: client.status())
    assert status == served.service.status()
    assert os.fsencode(status["odd"]) == b"\xff"


@under_trio
async def test_wait_returns_when_published_and_tells_progress_meanwhile(served: Served) -> None:
    served.service.write(b"a/\xfe.pt", 1000)
    told: list[dict[str, int]] = []

    def wait(client: ControlClient) -> Any:
        return client.request("wait", on_progress=told.append, path=os.fsdecode(b"a/\xfe.pt"), level="published")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(served.call, wait)
        await until(lambda: len(told) >= 2, "two progress lines")
        assert served.service.waiting_count == 1
        served.service.publish(b"a/\xfe.pt")
    assert told[0] == {"objects": 1, "bytes": 1000, "failing": 0}


@under_trio
async def test_errors_of_the_service_reach_the_client_with_type_and_hint(served: Served) -> None:
    with pytest.raises(UsageError, match="no such level: verified") as caught:
        await served.call(lambda client: client.request("wait", path="", level="verified"))
    assert caught.value.hint == "Say published."
    with pytest.raises(NotMountedError, match="no such path"):
        await served.call(lambda client: client.request("wait", path="absent", level="published"))
    served.service.bug = IntegrityError("wrong bytes")
    with pytest.raises(IntegrityError, match="wrong bytes"):
        await served.call(lambda client: client.status())


@under_trio
async def test_an_error_within_a_group_of_the_daemons_tasks_is_told_as_itself(served: Served) -> None:
    served.service.bug = ExceptionGroup("nursery", [ExceptionGroup("inner", [IntegrityError("wrong bytes")])])
    with pytest.raises(IntegrityError, match="wrong bytes"):
        await served.call(lambda client: client.status())


@under_trio
async def test_a_bug_of_the_daemon_is_an_error_reply_and_counted_and_the_next_request_is_answered(
    served: Served,
) -> None:
    served.service.bug = ZeroDivisionError("a bug")
    with pytest.raises(CkptfsError, match="ZeroDivisionError: a bug"):
        await served.call(lambda client: client.status())
    served.service.bug = None
    await served.call(lambda client: client.status())
    assert served.metrics.snapshot()["control_failures_total"] == 1


@under_trio
async def test_a_deadline_of_a_wait_is_kept_and_cancels_it(served: Served) -> None:
    served.service.write(b"a")
    with pytest.raises(DeadlineError):
        await served.call(lambda client: client.request("wait", timeout_s=0.2, path="a", level="published"))
    assert served.service.waiting_count == 0


@under_trio
async def test_a_client_that_goes_away_cancels_what_it_waits_for(served: Served) -> None:
    served.service.write(b"a")
    stream = await served.raw()
    await stream.send_all(b'{"v":1,"op":"wait","path":"a","level":"published"}\n')
    await until(lambda: served.service.waiting_count == 1, "the request waits")
    await stream.aclose()
    await until(lambda: served.service.waiting_count == 0, "the request is cancelled")


@under_trio
async def test_writers_are_refused_during_a_drain_and_accepted_again_when_its_client_goes_without_a_stop(
    served: Served,
) -> None:
    served.service.write(b"a")
    with pytest.raises(DeadlineError):
        await served.call(lambda client: client.request("drain", timeout_s=0.2))
    await until(lambda: not served.service.draining, "writers accepted again after a deadline")
    served.service.write(b"b")

    stream = await served.raw()
    await stream.send_all(b'{"v":1,"op":"drain"}\n')
    await until(lambda: served.service.draining, "the drain began")
    with pytest.raises(CkptfsError, match="no new writers"):
        served.service.write(b"c")
    other = await served.raw()
    await other.send_all(b'{"v":1,"op":"drain"}\n')
    await other.receive_some()
    await stream.aclose()
    await until(lambda: served.metrics.gauge("control_connections").value == 1, "the first client is gone")
    assert served.service.draining, "another client still drains"
    await other.aclose()
    await until(lambda: not served.service.draining, "writers accepted again after the last client")


@under_trio
async def test_a_drain_stays_in_force_until_the_stop_of_the_same_client(served: Served) -> None:
    def unmount(client: ControlClient) -> None:
        client.request("drain")
        assert served.service.draining
        client.stop()

    await served.call(unmount)
    assert served.service.stopped.is_set()
    await until(lambda: served.metrics.gauge("control_connections").value == 0, "the client is gone")
    assert served.service.draining, "a stopping session never takes writers again"


@under_trio
async def test_a_stop_goes_on_when_its_client_goes_away_and_is_asked_of_the_service_once(served: Served) -> None:
    served.service.stop_gate = trio.Event()
    streams = [await served.raw() for _ in range(3)]
    for stream in streams:
        await stream.send_all(b'{"v":1,"op":"stop"}\n')
    await until(lambda: served.service.stop_count == 1, "the stop began")
    for stream in streams:
        await stream.aclose()
    await until(lambda: served.metrics.gauge("control_connections").value == 0, "the clients are gone")
    served.service.stop_gate.set()
    await until(served.service.stopped.is_set, "the stop ended")
    assert served.service.stop_count == 1


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"hello\n",
        b"[]\n",
        b"{}\n",
        b'{"v":1}\n',
        b'{"v":1,"op":null}\n',
        b'{"v":1,"op":["status"]}\n',
        b'{"v":2,"op":"status"}\n',
        b'{"v":1,"op":"format"}\n',
        b'{"v":1,"op":"wait"}\n',
        b'{"v":1,"op":"wait","path":1,"level":"published"}\n',
        b'{"v":1,"op":"wait","path":"","level":"published","timeout_s":"soon"}\n',
        b'{"v":1,"op":"drain","timeout_s":-1}\n',
        b'{"v":1,"op":"drain","timeout_s":NaN}\n',
        b"\xff\xfe\n",
        b"[" * 100_000 + b"\n",
    ],
    ids=lambda line: repr(line[:40]),
)
def test_a_bad_request_gets_an_error_reply_and_the_next_one_on_the_same_connection_an_answer(line: bytes) -> None:
    @under_trio
    async def check(served: Served) -> None:
        stream = await served.raw()
        async with stream:
            answer = await ask(stream, line)
            assert answer["kind"] == "error"
            assert answer["error"]["type"] == "UsageError"
            assert (await ask(stream, b'{"v":1,"op":"status"}\n'))["kind"] == "done"
        assert served.metrics.snapshot()["control_failures_total"] == 0

    check()


@under_trio
async def test_an_endless_line_ends_its_connection_but_nothing_else(served: Served) -> None:
    stream = await served.raw()
    async with stream:
        with contextlib.suppress(trio.BrokenResourceError):
            await stream.send_all(b"x" * (limits.CONTROL_LINE_BYTES_MAX + 10))
        answer = await ask(stream, b"")
        assert "longer than" in answer["error"]["message"]
        with contextlib.suppress(trio.BrokenResourceError):
            assert await stream.receive_some() == b""
    await served.call(lambda client: client.status())


@under_trio
async def test_more_clients_than_allowed_are_told_so(served: Served) -> None:
    streams = [await served.raw() for _ in range(limits.CONTROL_CONNECTION_COUNT_MAX)]
    for stream in streams:
        assert (await ask(stream, b'{"v":1,"op":"pending"}\n'))["kind"] == "done"
    with pytest.raises(CkptfsError, match="too many clients"):
        await served.call(lambda client: client.status())
    for stream in streams:
        await stream.aclose()
    await until(lambda: served.metrics.gauge("control_connections").value == 0, "the clients are gone")
    await served.call(lambda client: client.status())


def test_only_the_user_may_enter_and_a_leftover_socket_is_replaced(runtime_dir: Path) -> None:
    registry.prepare()
    registry.socket_path(MOUNTPOINT).touch()

    @under_trio
    async def check(served: Served) -> None:
        await served.call(lambda client: client.status())
        assert os.stat(runtime_dir).st_mode & 0o777 == 0o700
        assert os.stat(served.entry.socket).st_mode & 0o777 == 0o600

    check()


def test_a_runtime_directory_that_others_may_enter_is_refused(runtime_dir: Path) -> None:
    runtime_dir.mkdir(mode=0o755)
    with pytest.raises(CkptfsError, match="not private"):
        registry.prepare()


def test_a_daemon_that_is_not_there_or_ends_meanwhile_is_an_error_that_names_mount_and_log() -> None:
    entry = registry.MountEntry(
        str(MOUNTPOINT), 1, 1, "file:///b", "/c", "/c/log", str(registry.socket_path(MOUNTPOINT))
    )
    with pytest.raises(NotMountedError, match=str(MOUNTPOINT)):
        ControlClient(entry)

    registry.prepare()
    directory = os.open(registry.runtime_dir(), os.O_PATH)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"/proc/self/fd/{directory}/{Path(entry.socket).name}")
        os.close(directory)
        with pytest.raises(NotMountedError, match="cannot be reached"):
            ControlClient(entry)
        listening.listen()
        with ControlClient(entry) as client:
            connection, _ = listening.accept()
            connection.close()
            with pytest.raises(NotMountedError, match=f"ended before it answered.*{MOUNTPOINT}") as caught:
                client.status()
            assert "/c/log" in caught.value.hint


def test_a_daemon_that_hangs_is_told_within_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CONTROL_REQUEST_S", 0.3)
    entry = registry.MountEntry(
        str(MOUNTPOINT), 1, 1, "file:///b", "/c", "/c/log", str(registry.socket_path(MOUNTPOINT))
    )
    registry.prepare()
    directory = os.open(registry.runtime_dir(), os.O_PATH)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"/proc/self/fd/{directory}/{Path(entry.socket).name}")
        os.close(directory)
        listening.listen()
        with ControlClient(entry) as client, pytest.raises(DeadlineError, match="does not answer"):
            client.status()
