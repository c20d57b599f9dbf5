"""A mounted session with the pyfuse3 driver: from mount(2) to the last request."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pyfuse3

from ckptfs.errors import UsageError
from ckptfs.fuse.operations import Operations

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from ckptfs.types import Ino
    from ckptfs.vfs import Vfs

REQUEST_TASKS_MIN = 8
REQUEST_TASKS_MAX = 128
"""Requests in work at once.

More than the kernel has background requests, so that page faults of many threads never use them all up.
"""

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
        self._vfs.on_name_changed(self._forget_name)

    def _forget_name(self, parent: Ino, name: bytes) -> None:
        if not self._ended:
            pyfuse3.invalidate_entry_async(parent, name, ignore_enoent=True)

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
