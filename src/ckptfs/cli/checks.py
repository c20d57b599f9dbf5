"""What is looked at before a daemon is started, so that a mount that cannot work says why in one line."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from dataclasses import replace
from typing import TYPE_CHECKING

from ckptfs.admin import mounts, registry
from ckptfs.cli.locate import is_inside
from ckptfs.cli.output import print_note
from ckptfs.errors import CkptfsError, NotMountedError, UsageError
from ckptfs.objectstore.url import StoreURL, parse_store_url

if TYPE_CHECKING:
    from pathlib import Path

    from ckptfs.settings import Settings

_FUSE_DEVICE = "/dev/fuse"
_FUSE_CONFIG = "/etc/fuse.conf"


def store_identity(url: str) -> str:
    """The canonical text of the store that a URL names: without what only says how to reach it.

    Raises:
        UsageError: it is no store URL.
    """
    parsed = parse_store_url(url)
    return str(replace(parsed, params={name: value for name, value in parsed.params.items() if name == "endpoint"}))


def check_mount(settings: Settings) -> None:
    """Return if a mount with these settings may be tried; clears a dead mount of ours away first.

    Raises:
        UsageError, NotMountedError, CkptfsError: it cannot work; each says what to do.
    """
    store = parse_store_url(settings.store_url)
    _check_apart(settings, store)
    _check_fuse(settings)
    _check_mountpoint(settings.mountpoint)


def _check_apart(settings: Settings, store: StoreURL) -> None:
    """The mountpoint, the cache directory and a bucket that is a directory must not lie in one another."""
    places = {"mountpoint": str(settings.mountpoint), "cache directory": str(settings.cache_dir)}
    if store.scheme == "file":
        places["bucket"] = os.path.realpath(store.bucket)
    for inner, inner_path in places.items():
        for outer, outer_path in places.items():
            if inner == outer or not is_inside(inner_path, outer_path):
                continue
            where = "are the same directory" if inner_path == outer_path else f"must not lie in the {outer}"
            subject = f"the {inner} and the {outer}" if inner_path == outer_path else f"the {inner}"
            raise UsageError(
                f"{subject} {where}: {inner_path}" + ("" if inner_path == outer_path else f" in {outer_path}"),
                hint="Choose directories that do not contain each other.",
            )


def _check_fuse(settings: Settings) -> None:
    if not os.path.exists(_FUSE_DEVICE):
        raise CkptfsError(
            f"there is no FUSE device: {_FUSE_DEVICE}",
            hint="Load the kernel module (modprobe fuse); in a container, start it with --device /dev/fuse and"
            " --cap-add SYS_ADMIN.",
        )
    if os.geteuid() != 0:
        _check_fuse_for_users(settings)


def _check_fuse_for_users(settings: Settings) -> None:
    if shutil.which("fusermount3") is None:
        raise CkptfsError(
            "fusermount3 is not installed", hint="Install the package fuse3: only root mounts without it."
        )
    if settings.allow_other and not _user_allow_other():
        raise UsageError(
            "allow_other is for root only on this machine", hint=f"Add the line user_allow_other to {_FUSE_CONFIG}."
        )
    if not os.access(_FUSE_DEVICE, os.R_OK | os.W_OK):
        raise CkptfsError(f"this user may not open {_FUSE_DEVICE}", hint="Its mode should be 666: chmod 666 /dev/fuse.")


def _user_allow_other() -> bool:
    try:
        with open(_FUSE_CONFIG, encoding="utf-8", errors="replace") as config:
            return any(line.split("#")[0].strip() == "user_allow_other" for line in config)
    except FileNotFoundError:
        return False


def _check_mountpoint(mountpoint: Path) -> None:
    here = mounts.mounted_at(mountpoint)
    if here is not None:
        _clear_dead(mountpoint, here)
    try:
        info = os.stat(mountpoint)
        occupied = stat.S_ISDIR(info.st_mode) and bool(os.listdir(mountpoint))
    except FileNotFoundError:
        raise NotMountedError(
            f"the mountpoint does not exist: {mountpoint}", hint=f"Make it: mkdir -p {mountpoint}"
        ) from None
    except OSError as error:
        if error.errno == errno.ENOTDIR:
            raise _no_directory(mountpoint) from None
        raise CkptfsError(f"cannot use the mountpoint: {mountpoint}: {error.strerror}") from None
    if not stat.S_ISDIR(info.st_mode):
        raise _no_directory(mountpoint)
    if os.geteuid() not in {0, info.st_uid}:
        raise UsageError(
            f"the mountpoint belongs to somebody else (uid {info.st_uid}): {mountpoint}",
            hint="Only root mounts on directories of others: choose one of your own.",
        )
    if occupied:
        print_note(f"warning: the mountpoint is not empty: what lies in {mountpoint} is hidden while it is mounted.")


def _no_directory(mountpoint: Path) -> UsageError:
    return UsageError(f"the mountpoint is not a directory: {mountpoint}", hint="Name a directory.")


def _clear_dead(mountpoint: Path, here: mounts.MountedHere) -> None:
    """Take a mount away whose daemon has died.

    Raises:
        CkptfsError: something lives there.
    """
    entry = registry.find(mountpoint)
    if entry is not None and entry.is_alive:
        raise CkptfsError(
            f"the mountpoint is busy: {mountpoint} shows {entry.store} already (pid {entry.pid})",
            hint=f"Unmount it first: ckptfs umount {mountpoint}",
        )
    if here.filesystem != mounts.FILESYSTEM_TYPE or not mounts.is_dead(mountpoint):
        raise CkptfsError(
            f"the mountpoint is busy: {here.source} ({here.filesystem}) is mounted on {mountpoint}",
            hint="Unmount it first, or name another mountpoint.",
        )
    mounts.unmount(mountpoint, lazy=True)
    print_note(f"note: took away the dead mount of a daemon that had not unmounted: {mountpoint}")
    _check_cleared(mountpoint)


def _check_cleared(mountpoint: Path) -> None:
    below = mounts.mounted_at(mountpoint)
    if below is not None:
        _clear_dead(mountpoint, below)
