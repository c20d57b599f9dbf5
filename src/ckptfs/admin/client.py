"""The control socket of one mount, the command line's side: synchronous, one request after the other."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Self

from ckptfs import limits
from ckptfs.admin import wire
from ckptfs.errors import CkptfsError, DeadlineError, NotMountedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ckptfs.admin.registry import MountEntry

Pending = dict[str, int]
"""What is not yet published, as :meth:`~ckptfs.admin.control.Service.pending` gives it."""


class ControlClient:
    """A connection to a daemon; a context manager. What it asked the daemon to hold ends with it.

    Args:
        entry: the mount.

    Raises:
        NotMountedError: the daemon does not run.
    """

    def __init__(self, entry: MountEntry) -> None:
        self._entry = entry
        self._buffer = bytearray()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with contextlib.ExitStack() as on_error:
            on_error.callback(self._socket.close)
            self._socket.settimeout(limits.CONTROL_REQUEST_S)
            self._connect(Path(entry.socket))
            on_error.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def status(self) -> dict[str, object]:
        """The mount's status."""
        status = self.request("status")["status"]
        assert isinstance(status, dict), "the server's contract"
        return status

    def request(
        self,
        operation: str,
        *,
        on_progress: Callable[[Pending], None] = lambda _: None,
        timeout_s: float | None = None,
        **arguments: str,
    ) -> wire.Message:
        """Ask, and return the result.

        Args:
            operation: ``status``, ``pending``, ``wait``, ``drain`` or ``stop``.
            on_progress: called about each second with what is not yet published.
            timeout_s: deadline of the operation, kept by the daemon; ``None``: as long as it takes.
            arguments: of the operation.

        Raises:
            NotMountedError: the daemon ended before it answered.
            DeadlineError: not within ``timeout_s``, or the daemon says nothing at all any more.
            CkptfsError: what the daemon answered.
        """
        try:
            self._socket.sendall(
                wire.encode({"op": operation, **arguments, **({} if timeout_s is None else {"timeout_s": timeout_s})})
            )
            while True:
                reply = wire.decode(self._next_line())
                if reply.get("kind") == "done":
                    result: wire.Message = reply["result"]
                    return result
                if reply.get("kind") == "error":
                    raise wire.decode_error(reply)
                on_progress(reply["pending"])
        except TimeoutError:
            raise DeadlineError(
                f"the daemon does not answer: pid {self._entry.pid}, serving {self._entry.mountpoint}",
                hint=_look_at_log(self._entry),
            ) from None
        except ConnectionError:
            raise NotMountedError(
                f"the daemon ended before it answered: pid {self._entry.pid}, serving {self._entry.mountpoint}",
                hint=_look_at_log(self._entry),
            ) from None

    def stop(self, *, on_progress: Callable[[Pending], None] = lambda _: None) -> None:
        """End the session. Returns when it has ended: a daemon may be gone before its answer is read.

        Raises:
            DeadlineError: it takes too long.
            CkptfsError: it did not end as it should.
        """
        with contextlib.suppress(NotMountedError):
            self.request("stop", on_progress=on_progress, timeout_s=limits.STOP_S)

    def _connect(self, path: Path) -> None:
        try:
            directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                self._socket.connect(f"/proc/self/fd/{directory}/{path.name}")
            finally:
                os.close(directory)
        except TimeoutError:
            raise DeadlineError(f"the daemon does not accept connections: pid {self._entry.pid}") from None
        except PermissionError:
            raise CkptfsError(
                f"this user may not ask the daemon: {self._entry.mountpoint}",
                hint="Run this as the user who mounted it.",
            ) from None
        except OSError as error:
            raise NotMountedError(
                f"the daemon of {self._entry.mountpoint} cannot be reached: pid {self._entry.pid}: {error.strerror}",
                hint=_look_at_log(self._entry),
            ) from None

    def _next_line(self) -> bytes:
        """The next reply. The daemon of a long request says something each second."""
        while (end := self._buffer.find(b"\n")) < 0:
            assert len(self._buffer) <= 2 * limits.CONTROL_LINE_BYTES_MAX, "the server's lines are bounded"
            data = self._socket.recv(65536)
            if not data:
                raise ConnectionResetError
            self._buffer += data
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line


def _look_at_log(entry: MountEntry) -> str:
    return f"See its log: {entry.log}" if entry.log else ""
