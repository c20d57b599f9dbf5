"""A mounted session with the pyfuse3 driver: from mount(2) to the last request."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pyfuse3

from ckptfs.errors import UsageError
from ckptfs.fuse.operations import Operations

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ckptfs.types import Ino
    from ckptfs.vfs import Vfs

REQUEST_TASKS_MIN = 1
REQUEST_TASKS_MAX = 128
"""Requests in work at once.

More than the kernel has background requests, so that page faults of many threads never use them all up.
"""

READ_AHEAD_KIB = 4096
"""How far the kernel reads ahead of a stream. Its own 128 KiB makes every read a request of 128 KiB."""

log = logging.getLogger(__name__)


class Pyfuse3Session:
    """One mount.

    Args:
        vfs: what is mounted.
        mountpoint: an existing directory.
        source: what ``mount(8)`` shows as the device.
        options: mount options, as ``allow_other``.
        timeout_s: how long the kernel may keep names and attributes, seconds.
    """

    def __init__(self, vfs: Vfs, mountpoint: Path, source: str, options: Sequence[str], *, timeout_s: float) -> None:
        self._vfs = vfs
        self._mountpoint = mountpoint
        self.operations = Operations(vfs, timeout_s=timeout_s)
        self._options = {
            "default_permissions",
            f"fsname={source.replace(',', '%2C')}",
            "subtype=ckptfs",
            *options,
        }
        self._ended = False

    def mount(self) -> None:
        """Mount.

        Raises:
            UsageError: the kernel or fusermount3 refused.
        """
        try:
            pyfuse3.init(self.operations, str(self._mountpoint), self._options)
        except RuntimeError as error:
            raise UsageError(
                f"cannot mount on {self._mountpoint}: {error}",
                hint="see that /dev/fuse is there, fuse3 is installed and the mountpoint is free",
            ) from error
        self._vfs.on_name_changed(self._forget_name, self._forget_name_now)

    def _forget_name(self, parent: Ino, name: bytes) -> None:
        if not self._ended:
            pyfuse3.invalidate_entry_async(parent, name, ignore_enoent=True)

    def _forget_name_now(self, parent: Ino, name: bytes) -> None:
        if not self._ended:
            with suppress(FileNotFoundError):  # the kernel does not know it
                pyfuse3.invalidate_entry(parent, name)

    def read_ahead(self) -> None:
        """Have the kernel read further ahead than it would; only root may ask for it.

        Blocks until requests are answered: before that the kernel would forget it again.
        """
        try:
            os.statvfs(self._mountpoint)
        except OSError:
            return  # unmounted already
        wanted = str(self._mountpoint)
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as table:
            devices = [fields[2] for fields in map(str.split, table) if fields[4] == wanted]
        if devices:
            try:
                Path(f"/sys/class/bdi/{devices[-1]}/read_ahead_kb").write_text(f"{READ_AHEAD_KIB}\n")
            except OSError as error:
                log.info("reads come in small requests: read_ahead_kb cannot be set: %s", error)

    async def run(self, ready: Callable[[], None]) -> None:
        """Answer requests until the mount is gone. Calls ``ready`` when requests are answered."""
        ready()
        await pyfuse3.main(REQUEST_TASKS_MIN, REQUEST_TASKS_MAX)
        self._ended = True

    def terminate(self) -> None:
        """Have :meth:`run` return soon."""
        pyfuse3.terminate()

    def unmount(self) -> None:
        """Unmount, if that did not happen yet, and free what libfuse holds. Blocks."""
        self._ended = True
        pyfuse3.close(unmount=True)
