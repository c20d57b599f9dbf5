"""Bytes in danger: of a content whose only object is about to go, that are wrong here, or that nobody has."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

from ckptfs.errors import IntegrityError, NamespaceConflictError
from ckptfs.namespace.rows import PLACE_FILE, PLACE_NONE
from ckptfs.types import ContentId, ContentState, Key

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from ckptfs.namespace import Namespace
    from ckptfs.publish.hooks import Hooks
    from ckptfs.publish.view import View
    from ckptfs.staging import Staging

SECURED_MAX = 10_000
"""Contents that are remembered as durable here; more cost another sync."""

log = logging.getLogger(__name__)


class Rescue:
    """Keeps bytes, or says that they are lost.

    Args:
        namespace: the contents.
        staging: their files.
        hooks: to bring a content here.
    """

    def __init__(self, namespace: Namespace, staging: Staging, hooks: Hooks) -> None:
        self._namespace = namespace
        self._staging = staging
        self._hooks = hooks
        self.secured: set[ContentId] = set()
        """Contents whose bytes here were made durable."""

    async def secure(self, content_id: ContentId) -> None:
        """Have the bytes of a content here, and have them stay here if the power fails when its object is gone."""
        await self._hooks.materialize(content_id)
        content = self._namespace.contents.get(content_id)
        if content is None:
            return
        if content.place == PLACE_FILE:
            fd = await self._staging.open(content_id)
            try:
                await self._staging.disk.fsync(fd)
            finally:
                with trio.CancelScope(shield=True):
                    await self._staging.disk.close(fd)
            await self._staging.sync_entry(content_id)
        state = self._namespace.state
        await state.sync(state.record("materialize", content=content_id))
        if len(self.secured) >= SECURED_MAX:
            self.secured.clear()
        self.secured.add(content_id)

    def wrong_bytes(self, view: View, content_id: ContentId, error: Exception) -> None:
        """The staged bytes are wrong or gone. If an object has them, that one is the source from now on."""
        content = self._namespace.contents.get(content_id)
        if content is None or content.place == PLACE_NONE:
            return
        log.error("%s", error)
        if content.state is ContentState.PUBLISHED and view.source(content, but=Key("")) is not None:
            content.place, content.data = PLACE_NONE, None
            self._namespace.contents.move(content, ContentState.RECLAIMED)
            return
        content.error = str(error) if isinstance(error, IntegrityError) else f"the staging file is gone: {error}"
        self._namespace.contents.move(content, ContentState.FAULTY)

    async def find(self, key: Key, content_id: ContentId, leaving: AbstractSet[Key]) -> None:
        """No obvious object holds the content; look at all that are known before it is given up."""
        await self._namespace.state.flush()
        content = self._namespace.contents.get(content_id)
        if content is None or content.place != PLACE_NONE:
            return
        for holder in self._namespace.bucket.holders(content_id):
            row = self._namespace.bucket.object(holder)
            if row is not None and holder not in leaving:
                content.key, content.etag = holder, row.etag
                self._namespace.state.contents.mark(content_id)
                self._namespace.state.touch()
                return
        if await self._may_be_found(key):
            raise NamespaceConflictError(f"{key!r}: the object that holds its content is not found yet")
        content = self._namespace.contents.get(content_id)
        if content is None or content.place != PLACE_NONE:
            return
        content.error = f"{key!r}: the object that held this content was changed or removed behind the mount's back"
        log.error("%s", content.error)
        self._namespace.contents.move(content, ContentState.FAULTY)

    async def _may_be_found(self, key: Key) -> bool:
        """Whether there are keys whose object is not known for certain: one of them may hold what is looked for."""
        after = Key("")
        while page := self._namespace.bucket.obliged(after, 1000):
            if any(obligation.tried and obligation.key != key for obligation in page):
                return True
            after = page[-1].key
            await trio.lowlevel.checkpoint()
        return False
