"""Where the file of a content is, and its making and removing."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ckptfs.types import ContentId

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ckptfs.disk.base import Disk, Fd

_FAN_OUT = 256


class Staging:
    """Files of contents under one directory.

    Args:
        disk: the filesystem.
        root: the directory; its 256 subdirectories are made by :meth:`prepare`.
    """

    def __init__(self, disk: Disk, root: Path) -> None:
        self.disk = disk
        self.root = root

    def prepare(self) -> None:
        """Make the directories. Blocks; for start-up only."""
        for number in range(_FAN_OUT):
            (self.root / f"{number:02x}").mkdir(parents=True, exist_ok=True)

    def path(self, content: ContentId) -> Path:
        """The file of a content."""
        return self.root / f"{content % _FAN_OUT:02x}" / str(content)

    async def create(self, content: ContentId) -> Fd:
        """Make the file of a content, empty, open for reading and writing."""
        return await self.disk.open(self.path(content), os.O_RDWR | os.O_CREAT | os.O_EXCL)

    async def open(self, content: ContentId) -> Fd:
        """Open the file of a content for reading and writing."""
        return await self.disk.open(self.path(content), os.O_RDWR)

    async def sync_entry(self, content: ContentId) -> None:
        """Return when the name of the file is on stable storage."""
        await self.disk.fsync_dir(self.path(content).parent)

    async def remove(self, content: ContentId) -> None:
        """Remove the file; who has it open keeps its bytes."""
        await self.disk.unlink(self.path(content))

    def contents(self) -> Iterator[ContentId]:
        """Every content that has a file. Blocks; for start-up only."""
        for directory in sorted(self.root.iterdir()):
            for entry in os.scandir(directory):
                if entry.name.isdigit():
                    yield ContentId(int(entry.name))
