"""The life of a daemon process: forked, owned, mounted, reported, ended.

The command forks twice before anything starts threads, and waits on a pipe. The daemon claims the cache directory and
the mountpoint (its locks are its own: nothing is inherited over the fork), serves, and reports the outcome on the pipe,
one line of JSON each: its pid, then either ``ready`` or the error that the command shows to the user. The end of the
pipe without either means that the daemon died, and its wait status says how.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import logging
import os
import select
import signal
import sys
import traceback
from typing import TYPE_CHECKING, NoReturn

import trio

from ckptfs import __version__, limits
from ckptfs.admin import registry, wire
from ckptfs.cli import cachedir
from ckptfs.cli.output import print_note, sentence
from ckptfs.daemon import serve
from ckptfs.env import RealEnv
from ckptfs.errors import CkptfsError, DeadlineError
from ckptfs.log import logging_to

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ckptfs.settings import Settings

_LOGGER = logging.getLogger(__name__)
_PR_SET_CHILD_SUBREAPER = 36


def run_in_foreground(settings: Settings, store: str) -> None:
    """Serve in this process until the session ends; log to standard error.

    Raises:
        CkptfsError: the mount did not become usable, or the session failed.
    """
    _serve(settings, store, log=None, on_ready=lambda: None)


def start(settings: Settings, store: str) -> int:
    """Start a daemon and return its pid when the mount is usable.

    Args:
        settings: of the mount.
        store: canonical URL of its store.

    Raises:
        CkptfsError: the mount did not become usable; no daemon runs then.
        DeadlineError: not within the deadline; the daemon was told to stop.
    """
    # The daemon, orphaned by the fork between, becomes a child of this process: its wait status can be read.
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    sys.stdout.flush()
    sys.stderr.flush()
    reading, writing = os.pipe()
    between = os.fork()
    if between == 0:
        os.close(reading)
        _become_daemon(settings, store, writing)
    os.close(writing)
    os.waitpid(between, 0)
    with open(reading, "rb") as pipe:
        return _await_ready(pipe.fileno(), settings)


def _await_ready(pipe: int, settings: Settings) -> int:
    """The pid of the daemon once it has reported ready; else its error is raised once it has ended."""
    pid = 0
    failure: CkptfsError | None = None
    buffer = b""
    try:
        while True:
            _await_word(pipe, settings)
            data = os.read(pipe, 65536)
            if not data:
                raise failure or _death(pid, settings)
            buffer += data
            while b"\n" in buffer:
                line, buffer = buffer.split(b"\n", 1)
                report = wire.decode(line)
                pid = int(report.get("pid", pid))
                if report["kind"] == "ready":
                    return pid
                if report["kind"] == "error":
                    failure = wire.decode_error(report)
    except (KeyboardInterrupt, DeadlineError):
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        raise


def _await_word(pipe: int, settings: Settings) -> None:
    """Return when the daemon has said something, or has ended.

    Raises:
        DeadlineError: it has not, for too long.
    """
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    if poll.poll(limits.START_QUIET_S * 1000):
        return
    print_note(f"still starting: {settings.mountpoint} (log: {_log_path(settings)})")
    if not poll.poll((limits.START_S - limits.START_QUIET_S) * 1000):
        raise DeadlineError(
            f"the mount is not usable after {limits.START_S:g} s: {settings.mountpoint}",
            hint=f"See the log: {_log_path(settings)}",
        )


def _death(pid: int, settings: Settings) -> CkptfsError:
    """What is known of a daemon that ended without a word."""
    how = "ended"
    if pid:
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return CkptfsError(
        f"the daemon {how} before the mount was usable: {settings.mountpoint}", hint=_last_error(_log_path(settings))
    )


def _last_error(log: Path) -> str:
    """The last line of the log that reports an error, or where to look."""
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 64 * limits.KIB))
        lines = file.read().decode("utf-8", "replace").splitlines()
        for line in reversed(lines):
            fields = line.split(" ", 2)
            if len(fields) == 3 and fields[1] in {"ERROR", "CRITICAL"}:
                return f"Its last error: {fields[2]} (log: {log})"
    return f"See the log: {log}"


def _become_daemon(settings: Settings, store: str, pipe: int) -> NoReturn:
    """The rest of the life of the forked process."""
    code = 1
    # What happens there is told over the pipe; nothing may run on into the frames of the command.
    try:
        os.setsid()
        # The process between the two forks has done its part.
        code = 0 if os.fork() != 0 else _run_daemon(settings, store, pipe)
    finally:
        sys.stderr.flush()
        os._exit(code)


def _run_daemon(settings: Settings, store: str, pipe: int) -> int:
    report = _Report(pipe)

    def on_ready() -> None:
        _detach_output(settings.cache_dir / cachedir.STDERR_NAME)
        report.last({"kind": "ready"})

    os.chdir("/")
    with open(os.devnull, "rb") as null:
        os.dup2(null.fileno(), 0)
    report.tell({"kind": "started", "pid": os.getpid()})
    try:
        _serve(settings, store, log=_log_path(settings), on_ready=on_ready)
    except CkptfsError as error:
        report.last(wire.encode_error(error))
        return error.exit_code
    except Exception as error:
        traceback.print_exc()
        report.last(wire.encode_error(CkptfsError(f"the daemon failed: {type(error).__name__}: {error}")))
        raise
    return 0


class _Report:
    """The daemon's end of the pipe. After the last word nothing is told any more: the log has it."""

    def __init__(self, pipe: int) -> None:
        self._pipe: int | None = pipe

    def tell(self, message: wire.Message) -> None:
        """Say something, if anybody listens still: an interrupted command has told us to stop by a signal."""
        if self._pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                os.write(self._pipe, wire.encode(message))

    def last(self, message: wire.Message) -> None:
        """Say something, and nothing after it."""
        self.tell(message)
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None


def _detach_output(target: Path) -> None:
    """Give back the terminal. What a library or the interpreter itself prints from now on goes to ``target``."""
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.close(descriptor)
    faulthandler.enable(file=2)


def _serve(settings: Settings, store: str, *, log: Path | None, on_ready: Callable[[], None]) -> None:
    """Own the mountpoint and the cache directory, serve, and give both back.

    Raises:
        CkptfsError: whatever ended the session too early; an unexpected exception is logged and told as one.
    """
    env = RealEnv()
    runtime = registry.prepare()
    mountpoint = settings.mountpoint
    entry = registry.MountEntry(
        mountpoint=str(mountpoint),
        pid=os.getpid(),
        pid_start=registry.process_start(os.getpid()) or 0,
        store=store,
        cache_dir=str(settings.cache_dir),
        log=str(log or ""),
        socket=str(registry.socket_path(mountpoint)),
    )

    def usable() -> None:
        registry.register(entry, env)
        _LOGGER.info("%s is mounted on %s", store, mountpoint)
        on_ready()

    with contextlib.ExitStack() as held:
        held.enter_context(cachedir.locked(registry.lock_path(mountpoint), lambda pid: _taken(mountpoint, pid)))
        held.enter_context(cachedir.claimed(settings.cache_dir, store, env))
        held.enter_context(_logging(log, settings))
        _LOGGER.info("ckptfs %s, pid %d, runtime directory %s: %s", __version__, os.getpid(), runtime, settings)
        if cachedir.lies_in_memory(settings.cache_dir):
            _LOGGER.warning("the cache directory lies in memory: what is staged is lost with the machine's power")
        try:
            trio.run(serve, settings, env, usable)
        except BaseException as error:
            cause = wire.sole(error)
            if isinstance(cause, CkptfsError):
                _LOGGER.log(logging.ERROR, "%s", sentence(cause))
                raise cause from None
            if isinstance(cause, KeyboardInterrupt):
                raise KeyboardInterrupt from None
            _LOGGER.critical("the session failed", exc_info=error)
            raise CkptfsError(
                f"the daemon failed: {type(cause).__name__}: {cause}", hint=f"See the log: {log}" if log else ""
            ) from error
        registry.unregister(mountpoint)
        _LOGGER.info("%s is unmounted", mountpoint)


@contextlib.contextmanager
def _logging(log: Path | None, settings: Settings) -> Iterator[None]:
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(logging_to(log, settings.log_level))
        except OSError as error:
            raise CkptfsError(f"cannot write the log: {error.filename}: {error.strerror}") from None
        yield


def _taken(mountpoint: Path, pid: str) -> CkptfsError:
    return CkptfsError(
        f"another ckptfs serves this mountpoint, or is about to: {mountpoint} (pid {pid})",
        hint="Unmount that one first, or name another mountpoint.",
    )


def _log_path(settings: Settings) -> Path:
    return settings.cache_dir / cachedir.LOG_NAME
