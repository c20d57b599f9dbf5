"""Settings: one name each, from every source, the later one winning; what is wrong is named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptfs.errors import UsageError
from ckptfs.settings import Raw, Settings, from_sources, parse_duration, parse_options, parse_size, read_config
from ckptfs.types import CloseMode

BASE: dict[str, Raw] = {"store_url": "file:///b", "mountpoint": "/m"}


def settings(*sources: dict[str, Raw]) -> Settings:
    return from_sources(BASE, *sources, default_cache_dir=lambda _: Path("/c"))


@pytest.mark.parametrize(
    ("text", "byte_count"),
    [
        ("0", 0),
        ("1024", 1024),
        ("1k", 1024),
        ("1kB", 1000),
        ("1KiB", 1024),
        ("200GiB", 200 << 30),
        ("200 gib", 200 << 30),
        ("200G", 200 << 30),
        ("1.5TB", 1_500_000_000_000),
        (".5MiB", 1 << 19),
        ("3PiB", 3 << 50),
        ("7B", 7),
    ],
)
def test_sizes(text: str, byte_count: int) -> None:
    assert parse_size(text) == byte_count


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1 XB", "1e9", "1,5G", "nan", "inf", "1GiBs", "١GiB"])
def test_what_is_no_size_is_refused_by_name(text: str) -> None:
    with pytest.raises(UsageError, match="not a size"):
        parse_size(text)


@given(st.integers(min_value=0, max_value=1 << 60))
def test_every_number_of_bytes_can_be_written_plainly(byte_count: int) -> None:
    assert parse_size(str(byte_count)) == byte_count


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30", 30), ("30s", 30), ("500ms", 0.5), ("1.5 m", 90), ("2h", 7200), ("1d", 86400), ("5min", 300)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "-1s", "1w", "inf", "1 s 2", "1M"])
def test_what_is_no_duration_is_refused_by_name(text: str) -> None:
    with pytest.raises(UsageError, match="not a duration"):
        parse_duration(text)


def test_defaults() -> None:
    made = settings()
    assert made.close_mode is CloseMode.SYNC
    assert made.part_bytes == 8 << 20
    assert made.refresh_s == 30
    assert (made.uid, made.gid) == (os.getuid(), os.getgid())
    assert made.allow_other == (os.geteuid() == 0)
    assert made.cache_dir == Path("/c")
    assert made.cache_size_bytes == 0


def test_each_source_wins_over_the_one_before_it() -> None:
    made = settings({"refresh": 10, "uploads": 2}, {"refresh": "20s", "part_size": "8MiB"}, {"refresh": "1m"})
    assert (made.refresh_s, made.upload_count_max, made.part_bytes) == (60, 2, 8 << 20)


def test_a_config_file_has_the_names_of_the_options(tmp_path: Path) -> None:
    file = tmp_path / "mount.toml"
    file.write_text(
        'store_url = "file:///bucket"\nmountpoint = "/mnt"\ncache-dir = "/nvme"\ncache_size = "1GiB"\n'
        'close = "async"\nrefresh = 2.5\nfile_mode = 0o640\ndir_mode = "0750"\nread_only = true\nuid = 7\n'
        'options = ["noexec", "nodev"]\n'
    )
    made = from_sources(read_config(str(file)), default_cache_dir=lambda _: Path("/c"))
    assert made == Settings(
        store_url="file:///bucket",
        mountpoint=Path("/mnt"),
        cache_dir=Path("/nvme"),
        cache_size_bytes=1 << 30,
        close_mode=CloseMode.ASYNC,
        refresh_s=2.5,
        file_mode=0o640,
        dir_mode=0o750,
        read_only=True,
        uid=7,
        gid=os.getgid(),
        allow_other=os.geteuid() == 0,
        fuse_options=("noexec", "nodev"),
    )


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("cache_siez = 1", "cache_siez", "cache_size"),
        ("refresh = [1]", "refresh", ""),
        ("refresh = nan", "refresh", ""),
        ("part_size = {a = 1}", "part_size", ""),
        ("read_only = 'perhaps'", "read_only", ""),
        ("uid = 1.5", "uid", ""),
        ("uid = true", "uid", ""),
        ("options = ['nodve']", "nodve", "nodev"),
        ("a = ", "not valid TOML", ""),
    ],
)
def test_what_is_wrong_in_a_config_file_is_named(tmp_path: Path, text: str, message: str, hint: str) -> None:
    file = tmp_path / "mount.toml"
    file.write_text(text)
    with pytest.raises(UsageError, match=message) as caught:
        settings(read_config(str(file)))
    assert hint in caught.value.hint


def test_a_config_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"absent\.toml.*No such file"):
        read_config(str(tmp_path / "absent.toml"))


def test_mount_options_are_settings_kernel_options_or_fstab_words() -> None:
    options = parse_options(
        "rw,noauto,_netdev,x-systemd.requires=a,defaults,cache_size=1GiB,close=async,nosuid,noatime"
    )
    made = settings(options)
    assert made.cache_size_bytes == 1 << 30
    assert made.close_mode is CloseMode.ASYNC
    assert made.fuse_options == ("nosuid", "noatime")
    assert not made.read_only


def test_ro_and_rw_are_read_only_and_the_later_wins() -> None:
    assert settings(parse_options("ro")).read_only
    assert not settings({"read_only": True}, parse_options("ro,rw")).read_only


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ("cachesize=1G", "cachesize", "cache_size"),
        ("nosiud", "nosiud", "nosuid"),
        ("cache_size", "without a value", "cache_size=VALUE"),
        ("store_url=x", "store_url", ""),
        ("nosuid=1", "nosuid", ""),
    ],
)
def test_what_is_wrong_in_mount_options_is_named(options: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        parse_options(options)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    "wrong",
    [
        {"cache_size": "1MiB"},
        {"refresh": "0"},
        {"refresh": "2d"},
        {"uid": -1},
        {"gid": 1 << 32},
        {"file_mode": "0o10000"},
        {"dir_mode": "rwx"},
        {"part_size": "1"},
        {"part_size": str((16 << 20) + 1)},
        {"part_size": "6GiB"},
        {"uploads": 0},
        {"uploads": 1000},
        {"uploads": "many"},
        {"driver": "fuse2"},
        {"driver": "passthrough"},
        {"close": "never"},
        {"log_level": "loud"},
        {"mountpoint": ""},
        {"mountpoint": "a\0b"},
        {"store_url": ""},
    ],
    ids=str,
)
def test_values_out_of_range_are_usage_errors_that_name_the_setting(wrong: dict[str, Raw]) -> None:
    with pytest.raises(UsageError) as caught:
        settings(wrong)
    name = next(iter(wrong))
    assert name in str(caught.value) or name == "driver"
    assert caught.value.hint or name in {"mountpoint", "uploads"}


def test_a_missing_store_or_mountpoint_is_named() -> None:
    with pytest.raises(UsageError, match="no store URL"):
        from_sources({"mountpoint": "/m"}, default_cache_dir=lambda _: Path("/c"))
    with pytest.raises(UsageError, match="no mountpoint"):
        from_sources({"store_url": "file:///b"}, default_cache_dir=lambda _: Path("/c"))


def test_paths_are_absolute_and_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path)
    made = settings({"mountpoint": "link", "cache_dir": "real/../link/cache"})
    assert made.mountpoint == (tmp_path / "real").resolve()
    assert made.cache_dir == (tmp_path / "real" / "cache").resolve()
