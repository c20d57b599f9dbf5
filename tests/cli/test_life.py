"""The commands over a real mount: mount, status, wait, umount, and what is promised when one of them cannot."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ckptfs.testing.mounts import Mount, ckptfs, is_mounted, poll
from ckptfs.testing.servers import WeedServer

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def stuck(tmp_path: Path) -> Iterator[Mount]:
    """A mount whose store hangs within :func:`cut`. Its root is listed: new names in it need no answer of the store."""
    with WeedServer(tmp_path / "weed") as server:
        server.make_bucket("bucket")
        options = ("--refresh", "10m")
        with Mount(
            server.url("bucket"), tmp_path / "stuck", tmp_path / "stuck-cache", *options, env=server.credentials()
        ) as mounted:
            assert os.listdir(mounted.path) == []
            mounted.server = server  # type: ignore[attr-defined]
            yield mounted


@contextlib.contextmanager
def cut(mount: Mount) -> Iterator[None]:
    """The store hangs while this is open."""
    server: WeedServer = mount.server  # type: ignore[attr-defined]
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


@contextlib.contextmanager
def holding(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that has ``path`` open."""
    with path.open("rb") as file:
        process = subprocess.Popen(["sleep", "1000"], stdin=file)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_mount_status_wait_umount_and_the_bucket_has_it_all(mount: Mount, bucket: Path) -> None:
    data = os.urandom(3_000_000)
    (mount / "run").mkdir()
    (mount / "run" / "a.pt").write_bytes(data)
    ckptfs("wait", mount / "run" / "a.pt", "--timeout", "60s")
    assert (bucket / "run" / "a.pt").read_bytes() == data
    (status,) = json.loads(ckptfs("status", mount.path, "--json").stdout)["mounts"]
    assert {"mountpoint", "store", "driver", "pid", "alive", "epoch", "states", "watermarks", "lag_s", "errors"} <= set(
        status
    )
    assert status["mountpoint"] == str(mount.path)
    assert status["store"] == mount.store_url
    assert status["pid"] == mount.pid
    assert status["errors"] == []
    text = ckptfs("status").stdout
    assert str(mount.path) in text
    assert f"pid {mount.pid}" in text
    (mount / "last").write_bytes(data)
    ckptfs("umount", mount.path)
    assert not is_mounted(mount.path)
    assert (bucket / "last").read_bytes() == data
    assert ckptfs("status").stdout == "Nothing is mounted.\n"


def test_status_shows_every_mount_and_finds_the_one_a_path_lies_in(tmp_path: Path, mount: Mount) -> None:
    other_bucket = tmp_path / "other-bucket"
    other_bucket.mkdir()
    with Mount(other_bucket.as_uri(), tmp_path / "other", tmp_path / "other-cache") as other:
        both = json.loads(ckptfs("status", "--json").stdout)["mounts"]
        assert {entry["mountpoint"] for entry in both} == {str(mount.path), str(other.path)}
        (other / "d").mkdir()
        (one,) = json.loads(ckptfs("status", other / "d", "--json").stdout)["mounts"]
        assert one["mountpoint"] == str(other.path)


def test_wait_follows_links_within_the_mount_and_refuses_those_out_of_it(
    mount: Mount, bucket: Path, tmp_path: Path
) -> None:
    (mount / "step-1").mkdir()
    (mount / "step-1" / "f").write_bytes(b"1")
    (mount / "latest").symlink_to("step-1")
    ckptfs("wait", mount / "latest")
    assert (bucket / "step-1" / "f").read_bytes() == b"1"
    (mount / "out").symlink_to(tmp_path)
    result = ckptfs("wait", mount / "out", check=False)
    assert result.returncode == 2
    assert str(tmp_path) in result.stderr


def test_wait_for_what_is_not_there_and_for_a_level_of_later(mount: Mount) -> None:
    result = ckptfs("wait", mount / "absent", check=False)
    assert result.returncode == 3
    assert str(mount / "absent") in result.stderr
    for level in ("replicated", "verified"):
        result = ckptfs("wait", mount.path, "--level", level, check=False)
        assert result.returncode == 2
        assert level in result.stderr


def test_a_name_of_any_bytes_can_be_waited_for(mount: Mount) -> None:
    name = os.fsencode(mount.path) + b"/\xff\xfe \n.pt"
    with open(name, "wb") as file:
        file.write(b"1")
    ckptfs("wait", os.fsdecode(name))


def test_umount_without_drain_keeps_what_is_staged_and_the_next_mount_publishes_it(stuck: Mount) -> None:
    data = os.urandom(1_000_000)
    with cut(stuck):
        (stuck / "kept").write_bytes(data)
        command = [sys.executable, "-m", "ckptfs.cli.main", "umount", stuck.path, "--no-drain"]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        poll(lambda: not is_mounted(stuck.path), "unmounted, however the store behaves")
    _, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    assert "1 object" in error
    assert str(stuck.cache_dir) in error
    stuck.remount()
    assert (stuck / "kept").read_bytes() == data
    stuck.wait()
    stuck.wipe_cache_and_remount()
    assert (stuck / "kept").read_bytes() == data


def test_a_drain_that_does_not_end_in_time_is_5_and_the_mount_takes_writers_again(stuck: Mount) -> None:
    with cut(stuck):
        (stuck / "a").write_bytes(b"1")
        result = ckptfs("umount", stuck.path, "--timeout", "2s", check=False)
        assert result.returncode == 5
        assert "1 object" in result.stderr
        assert "--no-drain" in result.stderr
        assert is_mounted(stuck.path)
        (stuck / "b").write_bytes(b"2")
    ckptfs("umount", stuck.path, timeout_s=180)
    assert not is_mounted(stuck.path)


def test_new_writers_are_refused_while_a_umount_drains_and_accepted_when_it_is_interrupted(stuck: Mount) -> None:
    with cut(stuck):
        (stuck / "a").write_bytes(b"1")
        process = subprocess.Popen([sys.executable, "-m", "ckptfs.cli.main", "umount", stuck.path])
        try:
            poll(lambda: stuck.status()["draining"], "the drain began")
            with pytest.raises(OSError, match=r".") as caught:
                (stuck / "b").write_bytes(b"2")
            assert caught.value.errno is not None
            assert (stuck / "a").read_bytes() == b"1", "readers go on"
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=20) == 130
        finally:
            process.kill()
            process.wait()
        poll(lambda: not stuck.status()["draining"], "the drain is over")
        (stuck / "b").write_bytes(b"2")


def test_a_wait_that_does_not_end_in_time_is_5(stuck: Mount) -> None:
    with cut(stuck):
        (stuck / "a").write_bytes(b"1")
        result = ckptfs("wait", stuck / "a", "--timeout", "1s", check=False)
        assert result.returncode == 5
        assert str(stuck / "a") in result.stderr


def test_umount_shows_its_progress_on_a_terminal(stuck: Mount) -> None:
    controller, terminal = pty.openpty()
    with cut(stuck):
        (stuck / "a").write_bytes(b"1" * 5000)
        process = subprocess.Popen(
            [sys.executable, "-m", "ckptfs.cli.main", "umount", stuck.path, "--timeout", "4s"], stderr=terminal
        )
        os.close(terminal)
        assert process.wait(timeout=60) == 5
    shown = b""
    with contextlib.suppress(OSError):  # how a terminal says that nobody has it open any more
        while data := os.read(controller, 65536):
            shown += data
    os.close(controller)
    assert shown.count(b"\rckptfs: waiting until everything of") >= 2
    assert b"1 object (4.9 KiB" in shown


def test_a_mount_in_use_stays_and_the_user_of_it_is_named(mount: Mount) -> None:
    (mount / "file").write_bytes(b"1")
    with holding(mount / "file") as process:
        result = ckptfs("umount", mount.path, check=False)
        assert result.returncode == 1
        assert f"{mount / 'file'} by sleep (pid {process.pid})" in result.stderr
        assert is_mounted(mount.path)
        (mount / "other").write_bytes(b"2")
    ckptfs("umount", mount.path)
    assert not is_mounted(mount.path)


def test_a_lazy_umount_takes_a_mount_in_use_away_and_keeps_all(mount: Mount) -> None:
    (mount / "file").write_bytes(b"1")
    with holding(mount / "file"):
        ckptfs("umount", mount.path, "--lazy")
        assert not is_mounted(mount.path)
    mount.remount()
    assert (mount / "file").read_bytes() == b"1"


def test_umount_8_ends_the_daemon_too(mount: Mount) -> None:
    (mount / "file").write_bytes(b"1")
    subprocess.run(["umount", mount.path], check=True)
    pid = mount.pid
    poll(lambda: not Path(f"/proc/{pid}").exists(), "the daemon has ended")
    mount.pid = None
    assert ckptfs("status").stdout == "Nothing is mounted.\n"
    mount.remount()
    assert (mount / "file").read_bytes() == b"1"


def test_a_killed_daemon_is_told_by_status_cleared_by_umount_and_nothing_closed_is_lost(mount: Mount) -> None:
    (mount / "file").write_bytes(b"1")
    assert mount.pid is not None
    os.kill(mount.pid, signal.SIGKILL)
    poll(lambda: not json.loads(ckptfs("status", "--json", check=False).stdout)["mounts"][0]["alive"], "known as dead")
    shown = ckptfs("status", check=False)
    assert shown.returncode == 1
    assert "PROBLEM" in shown.stdout
    assert f"ckptfs umount {mount.path}" in shown.stdout
    result = ckptfs("umount", mount.path, check=False)
    assert result.returncode == 1, "not everything is known to be published"
    assert str(mount.cache_dir) in result.stderr
    assert not is_mounted(mount.path)
    mount.remount()
    assert (mount / "file").read_bytes() == b"1"


def test_a_dead_mount_is_cleared_by_the_next_mount(mount: Mount) -> None:
    (mount / "file").write_bytes(b"1")
    pid = mount.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    poll(lambda: not Path(f"/proc/{pid}").exists(), "the daemon has ended")
    result = ckptfs("mount", mount.store_url, mount.path, "--cache-dir", mount.cache_dir)
    assert "took away the dead mount" in result.stderr
    mount.pid = int(mount.status()["pid"])
    assert (mount / "file").read_bytes() == b"1"


def test_a_daemon_that_hangs_is_told_by_status_and_umount_within_their_deadlines(mount: Mount) -> None:
    assert mount.pid is not None
    os.kill(mount.pid, signal.SIGSTOP)
    try:
        shown = ckptfs("status", mount.path, "--json", check=False, timeout_s=30)
        result = ckptfs("umount", mount.path, check=False, timeout_s=30)
    finally:
        os.kill(mount.pid, signal.SIGCONT)
    assert shown.returncode == 1
    assert "does not answer" in json.loads(shown.stdout)["mounts"][0]["problem"]
    assert result.returncode == 5
    assert f"pid {mount.pid}" in result.stderr


def test_a_read_only_mount_says_so_and_unmounts(bucket: Path, tmp_path: Path) -> None:
    (bucket / "file").write_bytes(b"1")
    with Mount(bucket.as_uri(), tmp_path / "ro", tmp_path / "ro-cache", "--read-only") as mounted:
        assert (mounted / "file").read_bytes() == b"1"
        with pytest.raises(OSError, match="Read-only file system"):
            (mounted / "new").touch()
        mounted.umount()


def test_mount_8_and_fstab_options_reach_the_kernel(bucket: Path, tmp_path: Path) -> None:
    with Mount(bucket.as_uri(), tmp_path / "m", tmp_path / "c", "-o", "noexec,nosuid,noatime") as mounted:
        with open("/proc/self/mountinfo", encoding="utf-8") as table:
            (line,) = (line for line in table if f" {mounted.path} " in line)
        assert {"noexec", "nosuid", "noatime"} <= set(line.split(" ")[5].split(","))
