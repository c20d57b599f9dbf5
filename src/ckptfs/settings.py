"""What a mount is asked to be: from defaults, a TOML file, ``-o`` options and the command line, the later one winning.

Every setting has one name. It is the key in the TOML file and in ``-o``; with ``--`` before it and dashes for
underscores it is the option of the command line.
"""

from __future__ import annotations

import difflib
import math
import os
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ckptfs import limits
from ckptfs.errors import UsageError
from ckptfs.types import CloseMode

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

Raw = str | int | float | bool | list[object]
"""A setting as it was written: text from a command line or ``-o``, a TOML value from a file."""

_SIZE_UNITS: Final = {
    "": 1,
    "B": 1,
    **{unit + "B": 1000**power for power, unit in enumerate("KMGTP", 1)},
    **{unit + "IB": 1024**power for power, unit in enumerate("KMGTP", 1)},
    **{unit: 1024**power for power, unit in enumerate("KMGTP", 1)},
}
_DURATION_UNITS: Final = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_QUANTITY: Final = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([A-Za-z]*)\s*", re.ASCII)

DRIVERS: Final = ("auto", "passthrough", "pyfuse3")
LOG_LEVELS: Final = ("debug", "info", "warning", "error")

KERNEL_OPTIONS: Final = frozenset(
    {
        "suid",
        "nosuid",
        "dev",
        "nodev",
        "exec",
        "noexec",
        "async",
        "sync",
        "dirsync",
        "atime",
        "noatime",
    }
)
"""Mount options that go to the kernel as they are. Later ones win."""

IGNORED_OPTIONS: Final = frozenset(
    {
        "defaults",
        "auto",
        "noauto",
        "user",
        "nouser",
        "users",
        "owner",
        "group",
        "nofail",
        "fail",
        "_netdev",
        "relatime",
        "norelatime",
        "strictatime",
        "diratime",
        "nodiratime",
        "sloppy",
    }
)
"""Options of fstab that mean something to mount(8) and systemd only, or ask for what is anyway so."""


def parse_size(text: str) -> int:
    """Bytes from ``1024``, ``64MiB``, ``1.5TB``; ``200G`` means GiB. A fraction is rounded down to whole bytes.

    Raises:
        UsageError: it is no size.
    """
    match = _QUANTITY.fullmatch(text)
    if match is None or match[2].upper() not in _SIZE_UNITS:
        raise UsageError(f"not a size: {text!r}", hint="Write it like 200GiB, 1.5TB or 1073741824.")
    unit = _SIZE_UNITS[match[2].upper()]
    return int(match[1]) * unit if match[1].isdigit() else int(float(match[1]) * unit)


def parse_duration(text: str) -> float:
    """Seconds from ``30``, ``500ms``, ``5m``, ``2h``, ``1d``.

    Raises:
        UsageError: it is no duration.
    """
    match = _QUANTITY.fullmatch(text)
    if match is None or match[2] not in _DURATION_UNITS:
        raise UsageError(f"not a duration: {text!r}", hint="Write it like 30s, 500ms, 5m or 2h.")
    return float(match[1]) * _DURATION_UNITS[match[2]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One mount's settings, checked.

    Attributes:
        store_url: the bucket, as the user wrote it.
        mountpoint: absolute, symlinks resolved.
        cache_dir: absolute, symlinks resolved; staging, cache, namespace and log live there.
        cache_size_bytes: most bytes that staged and cached contents may take together; 0: what the filesystem has.
        driver: ``auto`` or ``pyfuse3``.
        read_only: nothing is written to the bucket, and the mount says EROFS.
        foreground: the daemon stays the child of its terminal.
        close_mode: what ``close`` promises.
        refresh_s: after at most this long the mount shows what others changed in the bucket.
        uid: owner of what other tools put into the bucket.
        gid: group of what other tools put into the bucket.
        file_mode: permission bits of files that other tools put into the bucket.
        dir_mode: permission bits of directories that exist only because keys lie under them.
        part_bytes: size of an upload's parts, a multiple of 64 KiB; a store whose limits ask for it gets larger ones.
        upload_count_max: objects and parts that go up at once.
        log_level: ``debug``, ``info``, ``warning`` or ``error``.
        allow_other: other users than the one who mounts may use the mount (permission bits decide).
        fuse_options: further options for the kernel, of :data:`KERNEL_OPTIONS`.
    """

    store_url: str
    mountpoint: Path
    cache_dir: Path
    cache_size_bytes: int = 0
    driver: str = "auto"
    read_only: bool = False
    foreground: bool = False
    close_mode: CloseMode = CloseMode.SYNC
    refresh_s: float = limits.REFRESH_S_DEFAULT
    uid: int = 0
    gid: int = 0
    file_mode: int = 0o644
    dir_mode: int = 0o755
    part_bytes: int = limits.PART_BYTES_DEFAULT
    upload_count_max: int = limits.UPLOAD_COUNT_DEFAULT
    log_level: str = "info"
    allow_other: bool = False
    fuse_options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check(not self.store_url.isspace() and self.store_url != "", "store_url", self.store_url, "a store URL")
        _check(
            self.cache_size_bytes == 0 or self.cache_size_bytes >= limits.CACHE_BYTES_MIN,
            "cache_size",
            self.cache_size_bytes,
            f"0 (no bound but the filesystem's) or at least {limits.CACHE_BYTES_MIN >> 20} MiB",
        )
        _check(self.driver in DRIVERS, "driver", self.driver, " or ".join(DRIVERS))
        if self.driver == "passthrough":
            raise UsageError("the passthrough driver is not in this version", hint="Use --driver auto or pyfuse3.")
        _check(
            limits.REFRESH_S_MIN <= self.refresh_s <= limits.REFRESH_S_MAX,
            "refresh",
            f"{self.refresh_s:g} s",
            f"between {limits.REFRESH_S_MIN:g} s and {limits.REFRESH_S_MAX:g} s",
        )
        for name, number in (("uid", self.uid), ("gid", self.gid)):
            _check(0 <= number <= limits.ID_MAX, name, number, f"between 0 and {limits.ID_MAX}")
        for name, mode in (("file_mode", self.file_mode), ("dir_mode", self.dir_mode)):
            _check(0 <= mode <= 0o7777, name, f"{mode:#o}", "permission bits between 0 and 7777 (octal)")
        _check(
            limits.PART_BYTES_MIN <= self.part_bytes <= limits.PART_BYTES_MAX
            and self.part_bytes % limits.PART_BYTES_STEP == 0,
            "part_size",
            self.part_bytes,
            "between 1 MiB and 5 GiB, and a multiple of 64 KiB",
        )
        _check(
            1 <= self.upload_count_max <= limits.UPLOAD_COUNT_MAX,
            "uploads",
            self.upload_count_max,
            f"between 1 and {limits.UPLOAD_COUNT_MAX}",
        )
        _check(self.log_level in LOG_LEVELS, "log_level", self.log_level, ", ".join(LOG_LEVELS))


def _check(good: bool, name: str, value: object, wanted: str) -> None:  # noqa: FBT001 - the condition is the subject
    if not good:
        raise UsageError(f"{name} is out of range: {value}", hint=f"It must be {wanted}.")


def from_sources(*sources: Mapping[str, Raw], default_cache_dir: Callable[[str], Path]) -> Settings:
    """Settings from raw values, a later source winning over an earlier one.

    Args:
        sources: values under names that their readers have checked (:func:`read_config`, :func:`parse_options`).
        default_cache_dir: the cache directory for a store URL when none is named.

    Raises:
        UsageError: a value is missing, of the wrong form or out of range; the message names the setting.
    """
    raw: dict[str, Raw] = {}
    kernel: list[str] = []
    for source in sources:
        raw.update({name: value for name, value in source.items() if name != "options"})
        kernel.extend(_kernel_options(source.get("options", "")))
    for name, what in (("store_url", "store URL"), ("mountpoint", "mountpoint")):
        if name not in raw:
            raise UsageError(f"no {what} is given", hint="Usage: ckptfs mount STORE_URL MOUNTPOINT.")
    values: dict[str, object] = {"uid": os.getuid(), "gid": os.getgid(), "allow_other": os.geteuid() == 0}
    for name, value in raw.items():
        field, convert = _NAMES[name]
        try:
            values[field] = convert(value)
        except UsageError as error:
            raise UsageError(f"{name}: {error}", hint=error.hint) from None
    if "cache_dir" not in values:
        values["cache_dir"] = _path(str(default_cache_dir(str(raw["store_url"]))))
    return Settings(**values, fuse_options=tuple(kernel))  # type: ignore[arg-type] # _NAMES pairs each field with its type


def read_config(path: str) -> dict[str, Raw]:
    """The values of a TOML file.

    Raises:
        UsageError: it cannot be read, is no TOML, or has an unknown key (near matches are named).
    """
    try:
        with open(path, "rb") as file:
            document = tomllib.load(file)
    except OSError as error:
        raise UsageError(f"cannot read the config file: {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"the config file is not valid TOML: {path}: {error}") from None
    values: dict[str, Raw] = {}
    for key, value in document.items():
        name = key.replace("-", "_")
        if name not in NAMES:
            raise UsageError(f"unknown key {key!r} in the config file: {path}", hint=near(name, NAMES))
        if not isinstance(value, str | int | float | list):
            raise UsageError(f"{key!r} in the config file cannot be a {type(value).__name__}: {path}")
        values[name] = value
    return values


def parse_options(text: str) -> dict[str, Raw]:
    """The values of ``-o a,b=c``: settings by name, kernel options, and what only fstab means (ignored).

    Raises:
        UsageError: an unknown option (near matches are named), or one without the value it needs.
    """
    values: dict[str, Raw] = {}
    kernel: list[Raw] = []
    for option in filter(None, text.split(",")):
        key, has_value, value = option.partition("=")
        name = key.replace("-", "_")
        if key in IGNORED_OPTIONS or key.lower().startswith(("x-", "comment")):
            continue
        if key in KERNEL_OPTIONS and not has_value:
            kernel.append(key)
        elif key in {"ro", "rw"}:
            values["read_only"] = key == "ro"
        elif name not in OPTION_NAMES:
            raise UsageError(
                f"unknown mount option: {key}", hint=near(name, OPTION_NAMES | KERNEL_OPTIONS | {"ro", "rw"})
            )
        elif not has_value and name not in _FLAGS:
            raise UsageError(f"mount option without a value: {key}", hint=f"Write it as {key}=VALUE.")
        else:
            values[name] = value if has_value else True
    if kernel:
        values["options"] = list(kernel)
    return values


def near(name: str, known: Collection[str]) -> str:
    """A hint that names what of ``known`` looks like ``name``, or all of it when nothing does."""
    matches = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    if matches:
        return f"Did you mean {' or '.join(matches)}?"
    return f"Known: {', '.join(sorted(known))}."


def _kernel_options(value: Raw) -> list[str]:
    options = [str(item) for item in value] if isinstance(value, list) else str(value).split(",")
    for option in options:
        if option and option not in KERNEL_OPTIONS:
            raise UsageError(f"unknown kernel mount option: {option}", hint=near(option, KERNEL_OPTIONS))
    return [option for option in options if option]


def _text(value: Raw) -> str:
    if not isinstance(value, str):
        raise UsageError(f"not a text: {value!r}")
    return value


def _path(value: Raw) -> Path:
    text = _text(value)
    if not text or "\0" in text:
        raise UsageError(f"not a path: {text!r}")
    return Path(os.path.realpath(os.path.expanduser(text)))


def _flag(value: Raw) -> bool:
    if isinstance(value, bool):
        return value
    words = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
    word = str(value).lower()
    if word not in words:
        raise UsageError(f"not true or false: {value!r}")
    return words[word]


def _number(value: Raw) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and re.fullmatch(r"-?\d+", value, re.ASCII):
        return int(value)
    raise UsageError(f"not a whole number: {value!r}")


def _mode(value: Raw) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and re.fullmatch(r"(0o?)?[0-7]{1,5}", value, re.ASCII):
        return int(value.removeprefix("0o"), 8)
    raise UsageError(f"not permission bits: {value!r}", hint="Write them in octal, like 0644.")


def _size(value: Raw) -> int:
    return _number(value) if isinstance(value, int) else parse_size(_text(value))


def _duration(value: Raw) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not math.isfinite(value):
            raise UsageError(f"not a duration: {value!r}")
        return float(value)
    return parse_duration(_text(value))


def _choice(*known: str) -> Callable[[Raw], str]:
    def convert(value: Raw) -> str:
        if value not in known:
            raise UsageError(f"not known: {value!r}", hint=f"Choose from {', '.join(known)}.")
        return str(value)

    return convert


def _close_mode(value: Raw) -> CloseMode:
    return CloseMode(_choice(*CloseMode)(value))


_NAMES: Final[Mapping[str, tuple[str, Callable[[Raw], object]]]] = {
    "store_url": ("store_url", _text),
    "mountpoint": ("mountpoint", _path),
    "cache_dir": ("cache_dir", _path),
    "cache_size": ("cache_size_bytes", _size),
    "driver": ("driver", _choice(*DRIVERS)),
    "read_only": ("read_only", _flag),
    "foreground": ("foreground", _flag),
    "close": ("close_mode", _close_mode),
    "refresh": ("refresh_s", _duration),
    "uid": ("uid", _number),
    "gid": ("gid", _number),
    "file_mode": ("file_mode", _mode),
    "dir_mode": ("dir_mode", _mode),
    "part_size": ("part_bytes", _size),
    "uploads": ("upload_count_max", _number),
    "log_level": ("log_level", _choice(*LOG_LEVELS)),
    "allow_other": ("allow_other", _flag),
}
"""Name of a setting → its field in :class:`Settings` and what makes a raw value of it."""

_FLAGS: Final = frozenset({"read_only", "foreground", "allow_other"})

NAMES: Final = frozenset(_NAMES) | {"options"}
"""Keys of a config file."""

OPTION_NAMES: Final = frozenset(_NAMES) - {"store_url", "mountpoint", "foreground"} | {"config"}
"""Settings that ``-o`` takes. ``config`` names the TOML file for a line in fstab."""
