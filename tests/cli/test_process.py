"""The life of the daemon process: forked, reported, told to end, dead before its time."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from ckptfs.admin import registry
from ckptfs.testing.mounts import Mount, ckptfs, is_mounted, poll

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COMMAND = [sys.executable, "-m", "ckptfs.cli.main"]
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_EC2_METADATA_DISABLED": "true"}


def alive(pid: int) -> bool:
    return registry.process_start(pid) is not None


@pytest.fixture
def mountpoint(tmp_path: Path) -> Path:
    directory = tmp_path / "mnt"
    directory.mkdir()
    return directory


class Starting:
    """A mount command whose daemon waits for ever for a store that takes connections and never says a word."""

    def __init__(self, tmp_path: Path, mountpoint: Path, port: int) -> None:
        self.lock = tmp_path / "cache" / "lock"
        self.log = tmp_path / "cache" / "ckptfs.log"
        self.command = subprocess.Popen(
            [
                *COMMAND,
                "mount",
                f"s3://bucket?endpoint=http://127.0.0.1:{port}",
                mountpoint,
                "--cache-dir",
                tmp_path / "cache",
            ],
            env={**os.environ, **CREDENTIALS},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        poll(self.log.exists, "the daemon runs")
        self.daemon_pid = int(self.lock.read_text())


@pytest.fixture
def starting(tmp_path: Path, mountpoint: Path) -> Iterator[Starting]:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        begun = Starting(tmp_path, mountpoint, listening.getsockname()[1])
        yield begun
        for pid in (begun.command.pid, begun.daemon_pid):
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
        begun.command.communicate()


def test_the_daemon_is_a_process_of_its_own_without_terminal_or_open_pipes(mount: Mount) -> None:
    pid = mount.pid
    assert pid is not None
    assert os.getsid(pid) != os.getsid(0), "closing the terminal does not reach it"
    assert os.getsid(pid) != pid, "it can never get a terminal again"
    assert os.readlink(f"/proc/{pid}/cwd") == "/", "it keeps no directory busy"
    assert os.readlink(f"/proc/{pid}/fd/0") == os.devnull
    assert os.readlink(f"/proc/{pid}/fd/2") == str(mount.cache_dir / "ckptfs.stderr")


def test_a_daemon_killed_before_it_is_ready_is_told_with_its_signal(starting: Starting, mountpoint: Path) -> None:
    os.kill(starting.daemon_pid, signal.SIGKILL)
    _, error = starting.command.communicate(timeout=20)
    assert starting.command.returncode == 1
    assert error.startswith("ckptfs: the daemon was killed by SIGKILL before the mount was usable")
    assert str(mountpoint) in error
    assert str(starting.log) in error
    assert error.count("\n") == 1


def test_a_command_interrupted_while_it_waits_ends_the_daemon(starting: Starting, mountpoint: Path) -> None:
    starting.command.send_signal(signal.SIGINT)
    starting.command.communicate(timeout=20)
    assert starting.command.returncode == 130
    poll(lambda: not alive(starting.daemon_pid), "the daemon has ended")
    assert not is_mounted(mountpoint)


def test_a_start_that_takes_long_says_so(starting: Starting) -> None:
    assert starting.command.stderr is not None
    line = starting.command.stderr.readline()
    assert "still starting" in line
    assert str(starting.log) in line


def test_a_second_mount_on_the_same_mountpoint_is_refused_while_the_first_still_starts(
    starting: Starting, tmp_path: Path, bucket: Path, mountpoint: Path
) -> None:
    result = ckptfs("mount", bucket.as_uri(), mountpoint, "--cache-dir", tmp_path / "other", check=False)
    assert result.returncode == 1
    assert f"pid {starting.daemon_pid}" in result.stderr


def test_a_daemon_that_cannot_start_says_why_and_logs_it(tmp_path: Path, bucket: Path, mountpoint: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "ckptfs.json").write_text(json.dumps({"version": 1, "store": bucket.as_uri()}))
    (cache / "namespace.sqlite").write_bytes(b"no database" * 1000)
    result = ckptfs("mount", bucket.as_uri(), mountpoint, "--cache-dir", cache, check=False)
    assert result.returncode != 0
    line = result.stderr.strip().split("\n")[-1]
    assert line.startswith("ckptfs: "), result.stderr
    assert "namespace.sqlite" in line or "database" in line or str(cache / "ckptfs.log") in line
    assert " ERROR " in (cache / "ckptfs.log").read_text() or " CRITICAL " in (cache / "ckptfs.log").read_text()
    assert not is_mounted(mountpoint)


def test_after_a_failed_start_the_next_one_finds_nothing_in_its_way(tmp_path: Path, mountpoint: Path) -> None:
    bucket = tmp_path / "late-bucket"
    for _ in range(3):
        assert ckptfs("mount", bucket.as_uri(), mountpoint, "--cache-dir", tmp_path / "c", check=False).returncode == 1
    bucket.mkdir()
    with Mount(bucket.as_uri(), mountpoint, tmp_path / "c") as mounted:
        assert mounted.status()["alive"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_session_and_the_next_mount_has_everything(mount: Mount, number: signal.Signals) -> None:
    pid = mount.pid
    assert pid is not None
    (mount / "file").write_bytes(b"x" * 100_000)
    for _ in range(3):  # further ones while it ends change nothing
        if alive(pid):
            os.kill(pid, number)
    poll(lambda: not alive(pid), "the daemon has ended")
    mount.pid = None
    assert not is_mounted(mount.path)
    log = (mount.cache_dir / "ckptfs.log").read_text()
    assert f"{number.name}: ending the session" in log
    assert "is unmounted" in log
    assert ckptfs("status").stdout == "Nothing is mounted.\n"
    mount.remount()
    assert (mount / "file").read_bytes() == b"x" * 100_000


def test_in_the_foreground_it_logs_to_the_terminal_and_ends_with_0(
    tmp_path: Path, bucket: Path, mountpoint: Path
) -> None:
    process = subprocess.Popen(
        [*COMMAND, "mount", bucket.as_uri(), mountpoint, "--cache-dir", tmp_path / "cache", "--foreground"],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        poll(lambda: is_mounted(mountpoint) and registry.find(mountpoint), "mounted")
        assert json.loads(ckptfs("status", mountpoint, "--json").stdout)["mounts"][0]["pid"] == process.pid
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, error
    assert f"{bucket.as_uri()} is mounted on {mountpoint}" in error
    assert not is_mounted(mountpoint)


def test_a_process_of_the_same_number_is_not_taken_for_the_daemon(mount: Mount, runtime_dir: Path) -> None:
    entry = registry.find(mount.path)
    assert entry is not None
    assert entry.is_alive
    (file,) = runtime_dir.glob("*.json")
    file.write_text(json.dumps({**json.loads(file.read_text()), "pid": os.getpid()}))
    changed = registry.find(mount.path)
    assert changed is not None
    assert not changed.is_alive
    file.write_text(json.dumps({**json.loads(file.read_text()), "pid": mount.pid}))
