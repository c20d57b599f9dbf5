"""The control socket of one mount, the daemon's side."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from typing import TYPE_CHECKING, Protocol

import trio

from ckptfs import limits
from ckptfs.admin import wire
from ckptfs.errors import CkptfsError, DeadlineError, UsageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from ckptfs.env import Env
    from ckptfs.metrics import Metrics

_LOGGER = logging.getLogger(__name__)
_RECEIVE_BYTES = 16 * limits.KIB


class Service(Protocol):
    """What a mount can be asked from outside. Plain methods never block."""

    def status(self) -> dict[str, object]:
        """This mount as JSON-able values.

        Keys: ``mountpoint``, ``store``, ``driver``, ``pid``, ``epoch``, ``states`` (state to ``{"count", "bytes"}``),
        ``watermarks`` (name to lsn), ``lag_s``, ``errors`` (list of ``{"path", "message"}``); more may follow.
        """

    async def wait(self, path: bytes, level: str) -> None:
        """Return when everything that is now under ``path`` has reached ``level``.

        Args:
            path: relative to the mountpoint, without a leading slash; ``b""`` is everything.
            level: ``published``; ``replicated`` and ``verified`` are words for later.

        Raises:
            UsageError: a level that this mount cannot reach.
            NotMountedError: no such path.
        """

    def pending(self) -> dict[str, int]:
        """What is not yet published: ``objects``, ``bytes``, and how many of the objects are ``failing``."""

    async def drain(self) -> None:
        """Refuse new writers from now on; return when everything is published. May be cancelled, and called again."""

    def resume(self) -> None:
        """Accept writers again: a drain did not lead to a stop. Harmless when nothing was drained."""

    async def stop(self) -> None:
        """End the session (unmount, commit, close) and return when it has ended; staged bytes stay for the next mount.

        Called again, or while it runs, it does nothing but wait for the end. It may be cancelled once the session has
        ended, so what must be done is done by the daemon's own tasks.
        """


class ControlServer:
    """Answers on a Unix socket.

    Args:
        service: the mount.
        path: of the socket; what an earlier daemon left there is replaced. Its directory is made by the registry.
        env: threads.
        metrics: counts requests and failures.
    """

    def __init__(self, service: Service, path: Path, env: Env, metrics: Metrics) -> None:
        self.service = service
        self._path = path
        self._env = env
        self._connections = metrics.gauge("control_connections")
        self._requests = metrics.counter("control_requests_total")
        self.failures = metrics.counter("control_failures_total")
        self._drain_count = 0
        self._nursery: trio.Nursery | None = None
        self._stopped: trio.Event | None = None
        self._stop_failure: Exception | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Answer until cancelled. ``task_status`` is started when clients can connect.

        Raises:
            OSError: the socket cannot be made.
        """
        listener = trio.SocketListener(
            trio.socket.from_stdlib_socket(await self._env.run_blocking(_listen, self._path))
        )
        try:
            async with trio.open_nursery() as self._nursery:
                await self._nursery.start(trio.serve_listeners, self._serve, [listener])
                task_status.started()
        finally:
            self._path.unlink(missing_ok=True)

    async def stop(self) -> None:
        """Stop the service, in a task that outlives the connection that asked for it; return when it has stopped."""
        if self._stopped is None:
            assert self._nursery is not None, "a request comes over a connection of a running server"
            self._stopped = trio.Event()
            self._nursery.start_soon(self._stop, self._stopped)
        await self._stopped.wait()
        if self._stop_failure is not None:
            raise self._stop_failure

    async def _stop(self, stopped: trio.Event) -> None:
        try:
            await self.service.stop()
        except Exception as error:
            _LOGGER.exception("the session did not end as it should")
            self._stop_failure = error
        finally:
            stopped.set()

    def begin_drain(self) -> None:
        """Count one more client that wants the mount drained."""
        self._drain_count += 1

    def end_drain(self) -> None:
        """One client that wanted the mount drained is gone; after the last one writers are accepted again."""
        assert self._drain_count > 0, "a drain ends once"
        self._drain_count -= 1
        if self._drain_count == 0 and self._stopped is None:
            self.service.resume()

    async def _serve(self, stream: trio.SocketStream) -> None:
        """One connection. Lets nothing out but cancellation: an error here must not end the daemon."""
        self._connections.add(1)
        try:
            connection = _Connection(self, stream)
            if self._connections.value > limits.CONTROL_CONNECTION_COUNT_MAX:
                await connection.send(wire.encode_error(CkptfsError("too many clients", hint="Try again in a moment.")))
            else:
                await connection.run()
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            _LOGGER.debug("a client of the control socket went away")
        except* Exception:
            self.failures.add()
            _LOGGER.exception("a connection to the control socket failed")
        finally:
            self._connections.add(-1)

    def count_request(self) -> None:
        """Count one request."""
        self._requests.add()


class _Connection:
    """One client: its requests one after the other. When it goes away, what it waits for is cancelled."""

    def __init__(self, server: ControlServer, stream: trio.SocketStream) -> None:
        self._server = server
        self._stream = stream
        self._drains = False

    async def run(self) -> None:
        lines_in, lines_out = trio.open_memory_channel[bytes](1)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read, lines_in, nursery.cancel_scope)
                async with lines_out:
                    await self._answer_each(lines_out)
                nursery.cancel_scope.cancel()
        finally:
            if self._drains:
                self._server.end_drain()

    async def _read(self, lines: trio.MemorySendChannel[bytes], gone: trio.CancelScope) -> None:
        """Hand on each line; cancel everything of this connection at its end."""
        reader = _LineReader(self._stream)
        while (line := await reader.next_line()) is not None:
            await lines.send(line)
        gone.cancel()

    async def _answer_each(self, lines: trio.MemoryReceiveChannel[bytes]) -> None:
        while True:
            with trio.move_on_after(limits.STOP_S) as idle:
                line = await lines.receive()
            if idle.cancelled_caught:
                return
            self._server.count_request()
            await self.send(await self._answer(line))
            if len(line) >= limits.CONTROL_LINE_BYTES_MAX:
                return  # where the next request begins is not known

    async def _answer(self, line: bytes) -> wire.Message:
        """The last reply to one request."""
        try:
            if len(line) >= limits.CONTROL_LINE_BYTES_MAX:
                raise UsageError(f"a request is longer than {limits.CONTROL_LINE_BYTES_MAX} bytes")  # noqa: TRY301 - one place makes replies of errors
            return {"kind": "done", "result": await self._perform(wire.decode(line))}
        except CkptfsError as error:
            return wire.encode_error(error)
        except Exception as error:
            cause = wire.sole(error)
            if isinstance(cause, CkptfsError):
                return wire.encode_error(cause)
            if isinstance(error, trio.BrokenResourceError) or _only_broken(error):
                raise
            self._server.failures.add()
            _LOGGER.exception("a control request failed: %r", line[:200])
            return wire.encode_error(
                CkptfsError(f"the daemon failed to answer: {type(cause).__name__}: {cause}", hint="Its log says more.")
            )

    async def _perform(self, request: wire.Message) -> dict[str, object]:
        service = self._server.service
        operation = request.get("op")
        if operation == "status":
            return {"status": service.status()}
        if operation == "pending":
            return {"pending": dict(service.pending())}
        timeout_s = _timeout(request)
        if operation == "wait":
            path, level = (_text(request, name) for name in ("path", "level"))
            await self._long(
                lambda: service.wait(os.fsencode(path), level), timeout_s, f"{path or 'everything'}: {level}"
            )
        elif operation == "drain":
            if not self._drains:
                self._drains = True
                self._server.begin_drain()
            await self._long(service.drain, timeout_s, "everything: published")
        elif operation == "stop":
            await self._long(self._server.stop, min(timeout_s, limits.STOP_S), "the session: ended")
        else:
            raise UsageError(f"unknown request: {operation!r}", hint="Known: status, pending, wait, drain, stop.")
        return {"pending": dict(service.pending())}

    async def _long(self, work: Callable[[], Awaitable[None]], timeout_s: float, goal: str) -> None:
        """Do ``work`` with a progress line each second.

        Raises:
            DeadlineError: it took longer than ``timeout_s``.
        """
        failure: Exception | None = None
        with trio.move_on_after(timeout_s) as deadline:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._report_progress)
                try:
                    await work()
                except Exception as error:  # noqa: BLE001 - raised below, outside the nursery, which would wrap it
                    failure = error
                nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
        if deadline.cancelled_caught:
            raise DeadlineError(f"not within {timeout_s:g} s: {goal}")

    async def _report_progress(self) -> None:
        while True:
            await self.send({"kind": "progress", "pending": dict(self._server.service.pending())})
            await trio.sleep(limits.PROGRESS_S)

    async def send(self, message: wire.Message) -> None:
        """Send one line whole, whatever is cancelled meanwhile: half a line would spoil the next one.

        Raises:
            BrokenResourceError: the client is gone, or does not read.
        """
        line = wire.encode(message)
        with trio.CancelScope(shield=True, deadline=trio.current_time() + limits.CONTROL_GRACE_S) as scope:
            await self._stream.send_all(line)
        if scope.cancelled_caught:
            raise trio.BrokenResourceError("the client does not read its replies")


def _listen(path: Path) -> socket.socket:
    """A listening socket at ``path`` that only this user may connect to.

    An address of a Unix socket has 107 bytes, a path may have more: it is named through its directory's descriptor.
    """
    path.unlink(missing_ok=True)
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.ExitStack() as on_error:
            listening = on_error.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            listening.bind(f"/proc/self/fd/{directory}/{path.name}")
            path.chmod(0o600)
            listening.listen(limits.CONTROL_CONNECTION_COUNT_MAX)
            on_error.pop_all()
            return listening
    finally:
        os.close(directory)


class _LineReader:
    """Lines of a stream, bounded in length."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._buffer = bytearray()

    async def next_line(self) -> bytes | None:
        """The next line without its end, cut if it is too long; ``None`` when the client has gone."""
        while (end := self._buffer.find(b"\n")) < 0:
            if len(self._buffer) >= limits.CONTROL_LINE_BYTES_MAX:
                end = limits.CONTROL_LINE_BYTES_MAX
                break
            try:
                data = await self._stream.receive_some(_RECEIVE_BYTES)
            except trio.BrokenResourceError:
                return None
            if not data:
                return None
            self._buffer += data
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line


def _text(request: wire.Message, name: str) -> str:
    value = request.get(name)
    if not isinstance(value, str):
        raise UsageError(f"a request needs {name!r}, a text")
    return value


def _timeout(request: wire.Message) -> float:
    """Seconds the request may take; without one it waits as long as its client stays."""
    value = request.get("timeout_s")
    if value is None:
        return float("inf")
    if not isinstance(value, int | float) or isinstance(value, bool) or not value >= 0:
        raise UsageError(f"not a timeout: {value!r}")
    return float(value)


def _only_broken(error: Exception) -> bool:
    """Whether nothing but a lost connection is in this (group of) error."""
    return isinstance(error, ExceptionGroup) and error.split(trio.BrokenResourceError)[1] is None
