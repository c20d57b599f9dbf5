"""Who may make and remove the cache file of a content: never two at a time."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from ckptfs.types import ContentId


class FileGuard:
    """Contents whose cache file is being removed: a fetch waits for that, so that it does not lose its new file."""

    def __init__(self) -> None:
        self._removing: dict[ContentId, trio.Event] = {}

    @asynccontextmanager
    async def removing(self, contents: Iterable[ContentId]) -> AsyncIterator[None]:
        """Hold the files of ``contents`` for removal. Entered without an await."""
        mine = {content: trio.Event() for content in contents}
        assert not mine.keys() & self._removing.keys(), "a file is removed once"
        self._removing |= mine
        try:
            yield
        finally:
            for content, event in mine.items():
                del self._removing[content]
                event.set()

    async def wait(self, content: ContentId) -> None:
        """Return when nobody is removing the file of ``content``."""
        while content in self._removing:
            await self._removing[content].wait()
