"""What is compared: a native directory, JuiceFS with write-back, and ckptfs; each a directory that can be made cold."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

MIB = 1 << 20
MOUNT_S = 120.0
"""How long a mount or an unmount may take before the run is given up, seconds."""
DRAIN_S = 3600.0
"""How long background publication may take before the run is given up, seconds."""


class TargetError(Exception):
    """A target could not be brought into the state that a workload needs; the message says which and why."""


def poll(condition: Callable[[], object], what: str, *, timeout_s: float, every_s: float = 0.05) -> None:
    """Return as soon as ``condition()`` is true.

    Raises:
        TargetError: it was not within ``timeout_s``.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TargetError(f"not within {timeout_s:g} s: {what}")
        time.sleep(every_s)


def drop_kernel_caches() -> bool:
    """Forget clean pages, names and inodes of the whole machine; whether that was allowed (it needs root)."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3", encoding="ascii")
    except PermissionError:
        return False
    return True


def run(*command: str | Path, timeout_s: float = MOUNT_S) -> str:
    """Run a command to its end and give its output.

    Raises:
        TargetError: it failed or did not end in time; its own words are in the message.
    """
    try:
        result = subprocess.run(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise TargetError(f"{command[0]} did not end within {timeout_s:g} s") from error
    if result.returncode != 0:
        said = (result.stderr.strip() or result.stdout.strip())[-500:]
        raise TargetError(f"{Path(command[0]).name} {command[1]} ended with {result.returncode}: {said}")
    return result.stdout


class Target:
    """A directory to work in, made fresh by :meth:`start` and gone after :meth:`stop`.

    This class is the native directory; the others override what a mount needs.

    Attributes:
        name: heading of its column.
        promise: what a returned ``close`` means here, for the report.
        directory: where workloads work.
    """

    name = "native"
    promise = "close promises nothing; fsync: on the disk"

    def __init__(self, work: Path) -> None:
        self.root = work / self.name
        self.directory = self.root / "mnt"

    def version(self) -> str:
        """What is measured, in words."""
        return "the directory of the same disk"

    def start(self) -> None:
        """Make it, empty and usable."""
        self.directory.mkdir(parents=True)

    def stop(self) -> None:
        """Take it away with everything in it, whatever state it is in."""
        shutil.rmtree(self.root, ignore_errors=True)

    def daemon_pids(self) -> list[int]:
        """The processes that serve it now."""
        return []

    def drain(self, *, timeout_s: float = DRAIN_S) -> None:
        """Return when nothing written before is still on its way to the bucket, or to the disk."""
        del timeout_s
        os.sync()

    def remount(self, *, wipe_cache: bool = False) -> None:
        """Forget everything that a fresh mount would not know, in the kernel too.

        Args:
            wipe_cache: lose the local copies as well, so that only the bucket is left to read from.
        """
        del wipe_cache
        drop_kernel_caches()


class MountTarget(Target):
    """A filesystem in a process of its own."""

    def start(self) -> None:
        self.directory.mkdir(parents=True)
        for name in ("bucket", "cache"):
            (self.root / name).mkdir()
        self.prepare()
        self.mount()

    def prepare(self) -> None:
        """What a bucket needs before its first mount."""

    def stop(self) -> None:
        with contextlib.suppress(TargetError):
            self.unmount(drain=False)
        self._detach()
        super().stop()

    def mount(self) -> None:
        """Mount on :attr:`directory`; return when it is usable."""
        raise NotImplementedError

    def unmount(self, *, drain: bool) -> None:
        """Unmount; return when the daemon has ended."""
        raise NotImplementedError

    def remount(self, *, wipe_cache: bool = False) -> None:
        self.unmount(drain=True)
        if wipe_cache:
            shutil.rmtree(self.root / "cache")
            (self.root / "cache").mkdir()
        drop_kernel_caches()
        self.mount()

    def _mounted(self) -> bool:
        return os.path.ismount(self.directory)

    def _detach(self) -> None:
        command = ("umount", "-l") if os.geteuid() == 0 else ("fusermount3", "-u", "-z")
        with contextlib.suppress(TargetError):
            run(*command, self.directory)


class JuiceFS(MountTarget):
    """JuiceFS as its users run it for speed: write-back, metadata in SQLite, objects in a directory of the disk."""

    name = "juicefs"
    promise = "close and fsync: written to local staging, not synced to the disk (--writeback)"

    def __init__(self, work: Path, program: Path) -> None:
        super().__init__(work)
        self.program = program
        self._process: subprocess.Popen[bytes] | None = None

    def version(self) -> str:
        return run(self.program, "--version").strip()

    @property
    def _metadata(self) -> str:
        return f"sqlite3://{self.root}/meta.db"

    def prepare(self) -> None:
        storage = ("--storage", "file", "--bucket", f"{self.root}/bucket/")
        run(self.program, "format", *storage, "--trash-days", "0", self._metadata, "bench")

    def mount(self) -> None:
        options = ("--writeback", "--backup-meta", "0", "--no-usage-report", "--no-syslog")
        command = [str(self.program), "mount", *options, "--cache-dir", f"{self.root}/cache"]
        with (self.root / "log").open("ab") as log:
            self._process = subprocess.Popen([*command, self._metadata, str(self.directory)], stdout=log, stderr=log)
        poll(self._mounted, "juicefs is mounted", timeout_s=MOUNT_S)

    def unmount(self, *, drain: bool) -> None:
        process = self._process
        if process is None:
            return
        if drain:
            self.drain()
        run(self.program, "umount", "--flush" if drain else "--force", self.directory)
        try:
            process.wait(MOUNT_S)
        except subprocess.TimeoutExpired as error:
            raise TargetError("juicefs did not end after its unmount") from error
        self._process = None

    def stop(self) -> None:
        super().stop()
        for pid in reversed(self.daemon_pids()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def daemon_pids(self) -> list[int]:
        process = self._process
        if process is None or process.poll() is not None:
            return []
        return [process.pid, *_children(process.pid)]

    def drain(self, *, timeout_s: float = DRAIN_S) -> None:
        poll(lambda: not self._staged(), "juicefs has uploaded its staging", timeout_s=timeout_s, every_s=0.2)
        os.sync()

    def _staged(self) -> bool:
        return any(files for top in (self.root / "cache").glob("*/rawstaging") for _, _, files in os.walk(top))


class Ckptfs(MountTarget):
    """ckptfs over ``file://`` on the same disk.

    Args:
        work: where all targets live.
        close: what ``close`` promises: ``sync`` (the default of ckptfs) or ``async``.
        options: further options of ``ckptfs mount``.
    """

    def __init__(self, work: Path, close: str, *options: str) -> None:
        self.name = f"ckptfs-{close}"
        on_close = "on the disk" if close == "sync" else "promises no more than write"
        self.promise = f"close: {on_close}; fsync: on the disk"
        super().__init__(work)
        self._options = ("--close", close, *options)
        self._pid: int | None = None

    def version(self) -> str:
        return _ckptfs("--version").strip()

    def mount(self) -> None:
        store = (self.root / "bucket").as_uri()
        _ckptfs("mount", store, self.directory, "--cache-dir", self.root / "cache", *self._options)
        self._pid = int(self._status()["pid"])

    def unmount(self, *, drain: bool) -> None:
        pid = self._pid
        if pid is None:
            return
        timeout_s = DRAIN_S if drain else MOUNT_S
        _ckptfs("umount", self.directory, *(() if drain else ("--no-drain",)), timeout_s=timeout_s)
        poll(lambda: not Path(f"/proc/{pid}").exists(), "the ckptfs daemon has ended", timeout_s=MOUNT_S)
        self._pid = None

    def stop(self) -> None:
        super().stop()
        if self._pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            self._pid = None

    def daemon_pids(self) -> list[int]:
        return [] if self._pid is None else [self._pid]

    def drain(self, *, timeout_s: float = DRAIN_S) -> None:
        limit = f"{timeout_s:g}"
        _ckptfs("wait", self.directory, "--level", "published", "--timeout", limit, timeout_s=timeout_s + MOUNT_S)
        os.sync()

    def _status(self) -> dict[str, Any]:
        report = json.loads(_ckptfs("status", self.directory, "--json"))
        entries = report if isinstance(report, list) else report.get("mounts", [report])
        for entry in entries:
            if entry["mountpoint"] == str(self.directory):
                return dict(entry)
        raise TargetError("ckptfs status does not know the mount that ckptfs mount has just made")


def _ckptfs(*arguments: str | Path, timeout_s: float = MOUNT_S) -> str:
    return run(sys.executable, "-m", "ckptfs.cli.main", *arguments, timeout_s=timeout_s)


def _children(pid: int) -> list[int]:
    """Children and children's children of a process, parents first."""
    try:
        text = " ".join(path.read_text(encoding="ascii") for path in Path(f"/proc/{pid}/task").glob("*/children"))
    except (FileNotFoundError, ProcessLookupError):
        return []
    found: list[int] = []
    for child in re.findall(r"\d+", text):
        found += [int(child), *_children(int(child))]
    return found
