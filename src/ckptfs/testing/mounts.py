"""A real mount for a test: the real command line in processes of its own, and nothing left behind whatever happens."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

COMMAND_S = 120.0
"""How long any one command may take before the test fails, seconds."""


class CommandFailedError(Exception):
    """A ckptfs command ended with another exit code than was asked for.

    Attributes:
        result: the command with its exit code and output.
    """

    def __init__(self, result: subprocess.CompletedProcess[str]) -> None:
        super().__init__(f"{result.args} ended with {result.returncode}\n{result.stdout}\n{result.stderr}")
        self.result = result


def ckptfs(
    *arguments: str | Path, env: Mapping[str, str] | None = None, timeout_s: float = COMMAND_S, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run one ckptfs command as a user does.

    Args:
        arguments: what stands after ``ckptfs`` on the command line.
        env: variables beside those of this process.
        timeout_s: after this many seconds the command is killed.
        check: demand exit code 0.

    Raises:
        CommandFailedError: the exit code is not 0 and ``check`` is set.
        subprocess.TimeoutExpired: it did not end in time.
    """
    result = subprocess.run(
        [sys.executable, "-m", "ckptfs.cli.main", *map(str, arguments)],
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    if check and result.returncode != 0:
        raise CommandFailedError(result)
    return result


def is_mounted(mountpoint: Path) -> bool:
    """Whether something is mounted there, a dead daemon's mount included (``stat`` would fail on that one)."""
    wanted = str(mountpoint)
    with Path("/proc/self/mountinfo").open(encoding="utf-8", errors="surrogateescape") as table:
        return any(_unescape(line.split(" ")[4]) == wanted for line in table)


def _unescape(field: str) -> str:
    """A path of mountinfo as text: blanks, tabs, newlines and backslashes stand there in octal."""
    for code, char in ((r"\040", " "), (r"\011", "\t"), (r"\012", "\n"), (r"\134", "\\")):
        field = field.replace(code, char)
    return field


def poll(condition: Callable[[], object], what: str, *, timeout_s: float = COMMAND_S, every_s: float = 0.02) -> None:
    """Return as soon as ``condition()`` is true.

    Raises:
        TimeoutError: it was not within ``timeout_s``; ``what`` is in the message.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            msg = f"not within {timeout_s:g} s: {what}"
            raise TimeoutError(msg)
        time.sleep(every_s)


class Mount:
    """A bucket mounted by the real daemon; a context manager that mounts on entry and cleans up on exit.

    Args:
        store_url: as on the command line.
        mountpoint: made if it is not there.
        cache_dir: the daemon's cache directory; kept between :meth:`kill` or :meth:`umount` and :meth:`remount`.
        options: further options of ``ckptfs mount``.
        env: variables of the daemon beside those of this process (credentials).
    """

    def __init__(
        self,
        store_url: str,
        mountpoint: Path,
        cache_dir: Path,
        *options: str,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.store_url = store_url
        self.path = mountpoint.resolve()
        self.cache_dir = cache_dir
        self.options = options
        self.env = dict(env or {})
        self.pid: int | None = None

    def __enter__(self) -> Self:
        try:
            self.mount()
        except BaseException:
            self.discard()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()

    def __truediv__(self, name: str) -> Path:
        """The path of ``name`` in the mount."""
        return self.path / name

    def mount(self) -> None:
        """Mount, and return when the mount is usable.

        Raises:
            CommandFailedError: the mount command said no.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        ckptfs("mount", self.store_url, self.path, "--cache-dir", self.cache_dir, *self.options, env=self.env)
        assert is_mounted(self.path), f"mount said yes, but nothing is mounted on {self.path}"
        self.pid = int(self.status()["pid"])

    def umount(self, *, drain: bool = True, timeout_s: float = COMMAND_S) -> None:
        """Unmount; with ``drain`` everything is published before, else the staging keeps it for the next mount.

        Returns when the daemon has ended.

        Raises:
            CommandFailedError: the command said no.
        """
        ckptfs("umount", self.path, *(() if drain else ("--no-drain",)), env=self.env, timeout_s=timeout_s)
        poll(lambda: not is_mounted(self.path), f"{self.path} is unmounted")
        self._wait_for_end()

    def kill(self) -> None:
        """SIGKILL the daemon, as a crash would, and take its dead mount away."""
        assert self.pid is not None, "kill what was mounted"
        os.kill(self.pid, signal.SIGKILL)
        self._wait_for_end()
        _detach(self.path)

    def remount(self) -> None:
        """Mount again on the same cache directory."""
        self.mount()

    def wipe_cache_and_remount(self) -> None:
        """Unmount (drained), lose the cache directory, mount again: only the bucket is left to read from."""
        if self.pid is not None:
            self.umount()
        shutil.rmtree(self.cache_dir)
        self.mount()

    def status(self) -> dict[str, Any]:
        """What ``ckptfs status --json`` says of this mount."""
        report = json.loads(ckptfs("status", self.path, "--json", env=self.env).stdout)
        (entry,) = report["mounts"]
        assert entry["mountpoint"] == str(self.path), f"asked for {self.path}, was told of {entry['mountpoint']}"
        return dict(entry)

    def wait(self, *paths: Path, level: str = "published", timeout_s: float = COMMAND_S) -> None:
        """Return when everything under ``paths`` (the whole mount without any) has reached ``level``.

        Raises:
            CommandFailedError: it did not.
        """
        targets = paths or (self.path,)
        ckptfs(
            "wait",
            *targets,
            "--level",
            level,
            "--timeout",
            f"{timeout_s:g}",
            env=self.env,
            timeout_s=timeout_s + COMMAND_S,
        )

    def discard(self) -> None:
        """Take the mount away without publishing anything, whatever state it is in. Never raises for a dead daemon."""
        if self.pid is not None and _is_alive(self.pid):
            with contextlib.suppress(CommandFailedError, subprocess.TimeoutExpired):
                self.umount(drain=False, timeout_s=20)
        _detach(self.path)
        if self.pid is not None and _is_alive(self.pid):
            os.kill(self.pid, signal.SIGKILL)
            self._wait_for_end()

    def _wait_for_end(self) -> None:
        pid = self.pid
        assert pid is not None, "wait for what was mounted"
        poll(lambda: not _is_alive(pid), f"the daemon {pid} has ended")
        self.pid = None


def _is_alive(pid: int) -> bool:
    """Whether the process runs; one that has ended but was not reaped by its parent does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in {"Z", "X"}


def _detach(mountpoint: Path) -> None:
    """Lazily unmount whatever is mounted there, as often as needed."""
    while is_mounted(mountpoint):
        command = ("umount", "-l") if os.geteuid() == 0 else ("fusermount3", "-u", "-z")
        subprocess.run([*command, str(mountpoint)], check=True, capture_output=True)
