"""Everything that can be wrong with a command: one line that says what, of which thing, what to do; and its exit code.

Each is a real process, as a user starts it.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from ckptfs.testing.mounts import ckptfs, is_mounted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ckptfs.testing.mounts import Mount
    from ckptfs.testing.servers import WeedServer

ANONYMOUS = {
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
    "AWS_CONFIG_FILE": "/nonexistent",
}
"""Variables of a user without credentials."""

AS_NOBODY = """
import os, sys
from ckptfs.cli.main import main
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
sys.exit(main(sys.argv[1:]))
"""
"""Imports as the test's user, since only that one may be allowed to read the package; then drops every right."""


def refused(code: int, *arguments: str | Path, env: dict[str, str] | None = None) -> str:
    """Run a command that must fail with ``code``; its one line."""
    return one_line(ckptfs(*arguments, env=env, check=False), code)


def one_line(result: subprocess.CompletedProcess[str], code: int) -> str:
    assert result.returncode == code, result
    assert result.stdout == ""
    line = result.stderr
    assert line.startswith("ckptfs: "), line
    assert line.count("\n") == 1, line
    assert line.endswith("\n"), line
    return line


@pytest.fixture
def mountpoint(tmp_path: Path) -> Path:
    directory = tmp_path / "mnt"
    directory.mkdir()
    return directory


@contextlib.contextmanager
def tmpfs(directory: Path, *options: str) -> Iterator[None]:
    subprocess.run(["mount", "-t", "tmpfs", *options, "tmpfs", directory], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", directory], check=True)


# ----------------------------------------------------------------------------------------------------- the command line


def test_without_a_command_the_help_is_shown_and_the_code_is_usage() -> None:
    result = ckptfs(check=False)
    assert result.returncode == 2
    assert "ckptfs COMMAND --help" in result.stderr


def test_both_ways_to_start_the_module_work() -> None:
    for module in ("ckptfs", "ckptfs.cli.main"):
        result = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True, check=True)
        assert result.stdout.startswith("ckptfs ")


@pytest.mark.parametrize("command", ["mount", "umount", "status", "wait"])
def test_every_command_has_a_help_with_examples(command: str) -> None:
    text = ckptfs(command, "--help").stdout
    assert "examples:" in text
    assert f"ckptfs {command} " in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("mont", "file:///b", "/m"), ("unknown command", "'mont'", "mount")),
        (("mount", "--cach-dir", "/c", "file:///b", "/m"), ("unknown option", "--cach-dir", "--cache-dir")),
        (("mount", "file:///b", "/m", "/n"), ("one argument too many", "'/n'", "--help")),
        (("mount",), ("no store URL",)),
        (("mount", "file:///b"), ("no mountpoint",)),
        (("mount", "file:///b", "/m", "--cache-size", "lots"), ("cache_size", "'lots'", "200GiB")),
        (("mount", "file:///b", "/m", "--refresh", "never"), ("refresh", "'never'", "30s")),
        (("mount", "file:///b", "/m", "--close", "maybe"), ("close", "'maybe'", "sync")),
        (("mount", "file:///b", "/m", "--driver", "passthrough"), ("passthrough", "not in this version", "pyfuse3")),
        (("mount", "file:///b", "/m", "-o", "nosiud"), ("nosiud", "nosuid")),
        (("mount", "file:///b", "/m", "--config", "/nonexistent.toml"), ("/nonexistent.toml", "No such file")),
        (("umount",), ("MOUNTPOINT", "--help")),
        (("umount", "/m", "--timeout", "soon"), ("'soon'", "30s")),
        (("wait",), ("PATH", "--help")),
        (("wait", "/m", "--level", "safe"), ("safe", "published")),
        (("wait", "/m", "--timeout", "-1"), ("not a duration", "'-1'")),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else value,
)
def test_a_wrong_command_line_is_told(arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    line = refused(2, *arguments)
    for word in words:
        assert word in line


def test_a_config_file_with_an_unknown_key_is_told(tmp_path: Path) -> None:
    config = tmp_path / "mount.toml"
    config.write_text('store_url = "file:///b"\nmount_point = "/m"\n')
    line = refused(2, "mount", "--config", config)
    assert "'mount_point'" in line
    assert str(config) in line
    assert "Did you mean mountpoint" in line


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("bucket", ("'bucket'", "s3://")),
        ("/srv/bucket", ("'/srv/bucket'", "file:///srv/bucket")),
        ("http://host/bucket", ("http", "s3://")),
        ("s3://", ("names no bucket",)),
        ("s3://bucket/../c", ("'..'",)),
        ("s3://key:secret@bucket/p", ("credentials",)),
        ("s3://bucket?endpoint=ftp://h", ("endpoint",)),
        ("s3://bucket?regoin=x", ("regoin", "region")),
        ("gs://bucket", ("Google Cloud Storage",)),
        ("file://host/dir", ("'host'", "three slashes")),
    ],
)
def test_a_bad_url_is_told(mountpoint: Path, url: str, words: tuple[str, ...]) -> None:
    line = refused(2, "mount", url, mountpoint)
    for word in words:
        assert word in line
    assert "secret" not in line


# ----------------------------------------------------------------------------------------------------------- the bucket


def test_a_bucket_directory_that_is_not_there_is_told(tmp_path: Path, mountpoint: Path) -> None:
    line = refused(1, "mount", (tmp_path / "absent").as_uri(), mountpoint, "--cache-dir", tmp_path / "cache")
    assert str(tmp_path / "absent") in line
    assert not is_mounted(mountpoint)


def test_a_bucket_that_is_not_there_is_told(tmp_path: Path, mountpoint: Path, s3_server: WeedServer) -> None:
    url = s3_server.url("no-such-bucket")
    line = refused(1, "mount", url, mountpoint, "--cache-dir", tmp_path / "c", env=s3_server.credentials())
    assert "no-such-bucket" in line
    assert not is_mounted(mountpoint)


def test_missing_credentials_are_told(
    tmp_path: Path, mountpoint: Path, s3_server: WeedServer, s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    line = refused(1, "mount", s3_server.url(s3_bucket), mountpoint, "--cache-dir", tmp_path / "c", env=ANONYMOUS)
    assert "credentials" in line.lower()
    assert not is_mounted(mountpoint)


def test_wrong_credentials_are_told(tmp_path: Path, mountpoint: Path, s3_server: WeedServer, s3_bucket: str) -> None:
    env = {**s3_server.credentials(), "AWS_SECRET_ACCESS_KEY": "wrong"}
    line = refused(1, "mount", s3_server.url(s3_bucket), mountpoint, "--cache-dir", tmp_path / "c", env=env)
    assert s3_bucket in line or "credentials" in line.lower()
    assert not is_mounted(mountpoint)


# ------------------------------------------------------------------------------------------------------- the mountpoint


def test_a_mountpoint_that_is_not_there_is_told(tmp_path: Path, bucket: Path) -> None:
    absent = tmp_path / "absent"
    line = refused(3, "mount", bucket.as_uri(), absent, "--cache-dir", tmp_path / "cache")
    assert f"mkdir -p {absent}" in line


@pytest.mark.parametrize("below", ["", "deeper"])
def test_a_mountpoint_that_is_a_file_is_told(tmp_path: Path, bucket: Path, below: str) -> None:
    file = tmp_path / "file"
    file.touch()
    line = refused(2, "mount", bucket.as_uri(), file / below, "--cache-dir", tmp_path / "cache")
    assert "not a directory" in line
    assert str(file) in line


def test_a_mountpoint_where_something_else_is_mounted_is_told(tmp_path: Path, bucket: Path, mountpoint: Path) -> None:
    with tmpfs(mountpoint):
        line = refused(1, "mount", bucket.as_uri(), mountpoint, "--cache-dir", tmp_path / "cache")
    assert "busy" in line
    assert "tmpfs" in line


def test_a_mountpoint_that_ckptfs_serves_already_is_told_with_bucket_and_pid(tmp_path: Path, mount: Mount) -> None:
    other = tmp_path / "other"
    other.mkdir()
    line = refused(1, "mount", other.as_uri(), mount.path, "--cache-dir", tmp_path / "other-cache")
    assert mount.store_url in line
    assert f"pid {mount.pid}" in line
    assert f"ckptfs umount {mount.path}" in line


def test_a_mountpoint_that_is_not_empty_is_mounted_with_a_warning(
    tmp_path: Path, bucket: Path, mountpoint: Path
) -> None:
    (mountpoint / "hidden").touch()
    result = ckptfs("mount", bucket.as_uri(), mountpoint, "--cache-dir", tmp_path / "cache")
    try:
        assert "not empty" in result.stderr
        assert os.listdir(mountpoint) == []
    finally:
        ckptfs("umount", mountpoint)


@pytest.mark.parametrize(
    ("bucket_name", "mountpoint_name", "cache_name"),
    [
        ("bucket", "bucket/mnt", "cache"),
        ("bucket", "bucket", "cache"),
        ("mnt/bucket", "mnt", "cache"),
        ("bucket", "cache/mnt", "cache"),
        ("bucket", "mnt", "mnt/cache"),
        ("bucket", "mnt", "bucket/cache"),
        ("cache/bucket", "mnt", "cache"),
        ("bucket", "link/mnt", "cache"),
    ],
)
def test_directories_within_each_other_are_refused(
    tmp_path: Path, bucket_name: str, mountpoint_name: str, cache_name: str
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "bucket")
    for name in (bucket_name, mountpoint_name):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
    before = sorted(tmp_path.rglob("*"))
    url = (tmp_path / bucket_name).as_uri()
    line = refused(2, "mount", url, tmp_path / mountpoint_name, "--cache-dir", tmp_path / cache_name)
    assert "directories that do not contain each other" in line
    assert sorted(tmp_path.rglob("*")) == before, "nothing may have been made there"


# -------------------------------------------------------------------------------------------------- the cache directory


def test_a_cache_directory_of_another_filesystem_is_told(tmp_path: Path, mount: Mount) -> None:
    mount.umount()
    other = tmp_path / "other"
    other.mkdir()
    line = refused(2, "mount", other.as_uri(), mount.path, "--cache-dir", mount.cache_dir)
    assert "belongs to another filesystem" in line
    assert mount.store_url in line
    assert other.as_uri() in line
    assert not is_mounted(mount.path)


def test_the_same_store_written_in_another_way_is_the_same_filesystem(mount: Mount, bucket: Path) -> None:
    mount.umount()
    mount.store_url = f"file://{bucket.parent}/./{bucket.name}/"
    mount.remount()


def test_a_first_mount_that_failed_does_not_bind_its_cache_directory(
    tmp_path: Path, bucket: Path, mountpoint: Path
) -> None:
    cache = tmp_path / "cache"
    refused(1, "mount", (tmp_path / "buckte").as_uri(), mountpoint, "--cache-dir", cache)
    ckptfs("mount", bucket.as_uri(), mountpoint, "--cache-dir", cache)
    ckptfs("umount", mountpoint)
    line = refused(2, "mount", (tmp_path / "buckte").as_uri(), mountpoint, "--cache-dir", cache)
    assert "belongs to another filesystem" in line


def test_a_cache_directory_in_use_is_told_with_its_pid(tmp_path: Path, mount: Mount) -> None:
    other = tmp_path / "other-mnt"
    other.mkdir()
    line = refused(1, "mount", mount.store_url, other, "--cache-dir", mount.cache_dir)
    assert "in use" in line
    assert f"pid {mount.pid}" in line
    assert not is_mounted(other)


def test_a_directory_with_other_files_is_no_cache_directory(tmp_path: Path, bucket: Path, mountpoint: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.tex").touch()
    line = refused(2, "mount", bucket.as_uri(), mountpoint, "--cache-dir", home)
    assert "'thesis.tex'" in line
    assert os.listdir(home) == ["thesis.tex"]


def test_an_empty_disk_is_a_cache_directory(tmp_path: Path, bucket: Path, mountpoint: Path) -> None:
    disk = tmp_path / "disk"
    (disk / "lost+found").mkdir(parents=True)
    ckptfs("mount", bucket.as_uri(), mountpoint, "--cache-dir", disk)
    ckptfs("umount", mountpoint)


def test_a_cache_directory_on_a_fuse_filesystem_is_told(mount: Mount, mountpoint_2: Path, bucket_2: Path) -> None:
    line = refused(2, "mount", bucket_2.as_uri(), mountpoint_2, "--cache-dir", mount / "cache")
    assert "FUSE" in line
    assert str(mount.path) in line


@pytest.fixture
def bucket_2(tmp_path: Path) -> Path:
    directory = tmp_path / "bucket-2"
    directory.mkdir()
    return directory


@pytest.fixture
def mountpoint_2(tmp_path: Path) -> Path:
    directory = tmp_path / "mnt-2"
    directory.mkdir()
    return directory


def test_a_cache_directory_that_cannot_be_written_is_told(tmp_path: Path, bucket: Path, mountpoint: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    with tmpfs(disk, "-o", "ro"):
        for place in (disk, disk / "cache"):
            line = refused(1, "mount", bucket.as_uri(), mountpoint, "--cache-dir", place)
            assert "Read-only file system" in line
            assert str(place) in line
    (disk / "file").touch()
    line = refused(1, "mount", bucket.as_uri(), mountpoint, "--cache-dir", disk / "file")
    assert str(disk / "file") in line


def test_a_damaged_identity_or_one_of_a_later_version_is_told(tmp_path: Path, bucket: Path, mountpoint: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "namespace.sqlite").touch()
    identity = cache / "ckptfs.json"
    identity.write_text("{")
    assert str(identity) in refused(1, "mount", bucket.as_uri(), mountpoint, "--cache-dir", cache)
    identity.write_text(json.dumps({"version": 99, "store": bucket.as_uri()}))
    assert "format 99" in refused(2, "mount", bucket.as_uri(), mountpoint, "--cache-dir", cache)


# ---------------------------------------------------------------------------------------------------------- the machine


def test_a_machine_without_fuse_is_told(tmp_path: Path, bucket: Path, mountpoint: Path) -> None:
    command = [sys.executable, "-m", "ckptfs.cli.main", "mount", bucket.as_uri(), str(mountpoint)]
    script = 'mount -t tmpfs tmpfs /dev && exec "$@"'
    result = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, "sh", *command, "--cache-dir", str(tmp_path / "cache")],
        capture_output=True,
        text=True,
        check=False,
    )
    line = one_line(result, 1)
    assert "/dev/fuse" in line
    assert "modprobe fuse" in line
    assert "--device /dev/fuse" in line


def test_a_user_without_fusermount3_is_told(tmp_path: Path, bucket: Path, mountpoint: Path) -> None:
    command = [sys.executable, "-c", AS_NOBODY, "mount", bucket.as_uri(), str(mountpoint)]
    result = subprocess.run(
        [*command, "--cache-dir", str(tmp_path / "cache")],
        env={**os.environ, "PATH": "/nonexistent"},
        capture_output=True,
        text=True,
        check=False,
    )
    line = one_line(result, 1)
    assert "fusermount3 is not installed" in line
    assert "package fuse3" in line


# ------------------------------------------------------------------------------------------------------- other commands


def test_what_is_not_mounted_is_told_by_every_command(tmp_path: Path) -> None:
    for command in ("umount", "status", "wait"):
        line = refused(3, command, tmp_path)
        assert str(tmp_path) in line
        assert "ckptfs status" in line


def test_umount_of_another_filesystem_is_told(mountpoint: Path) -> None:
    with tmpfs(mountpoint):
        line = refused(3, "umount", mountpoint)
        assert "tmpfs" in line
        assert is_mounted(mountpoint)


def test_status_without_mounts_is_fine() -> None:
    assert ckptfs("status").stdout == "Nothing is mounted.\n"
    assert json.loads(ckptfs("status", "--json").stdout) == {"version": 1, "mounts": []}


def test_the_mount_helper_takes_what_mount_8_gives_and_refuses_in_one_line(tmp_path: Path, bucket: Path) -> None:
    helper = [sys.executable, "-c", "import sys; from ckptfs.cli.main import mount_helper; sys.exit(mount_helper())"]
    options = f"rw,noauto,_netdev,x-systemd.automount,defaults,cache_dir={tmp_path / 'cache'},close=async"

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*helper, *arguments], capture_output=True, text=True, check=False)

    absent = str(tmp_path / "absent")
    assert absent in one_line(run(bucket.as_uri(), absent, "-o", options), 3)
    assert "clsoe" in one_line(run(bucket.as_uri(), absent, "-o", "clsoe=async"), 2)
    assert "config" in one_line(run(bucket.as_uri(), absent, "-o", "config"), 2)
    mountpoint = tmp_path / "mnt"
    mountpoint.mkdir()
    fake = run(bucket.as_uri(), str(mountpoint), "-f", "-n", "-v", "-o", options)
    assert (fake.returncode, fake.stdout, fake.stderr) == (0, "", "")
    assert not is_mounted(mountpoint)
    real = run(bucket.as_uri(), str(mountpoint), "-n", "-o", options)
    assert (real.returncode, real.stdout, real.stderr) == (0, "", "")
    assert is_mounted(mountpoint)
    assert json.loads(ckptfs("status", mountpoint, "--json").stdout)["mounts"][0]["close"] == "async"
    ckptfs("umount", mountpoint)
