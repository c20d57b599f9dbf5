"""SIGTERM, SIGINT and SIGHUP end the session as ``ckptfs umount --no-drain`` does: nothing staged is lost."""

from __future__ import annotations

import logging
import signal
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from ckptfs.admin.control import Service

_LOGGER = logging.getLogger(__name__)


async def stop_on_signals(service: Service, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    """Stop the service at the first signal, and only say so at further ones, until cancelled.

    Start it before mounting: until then a signal ends the process at once, which is safe but leaves a dead mount.
    """
    stopping = False
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as received:
        task_status.started()
        async with trio.open_nursery() as nursery:
            async for number in received:
                name = signal.Signals(number).name
                if stopping:
                    _LOGGER.warning("%s again: the session is ending already", name)
                    continue
                stopping = True
                nursery.start_soon(_stop, service, name)


async def _stop(service: Service, name: str) -> None:
    pending = service.pending()
    _LOGGER.warning(
        "%s: ending the session; not yet published, and staged for the next mount: %d objects, %d bytes",
        name,
        pending["objects"],
        pending["bytes"],
    )
    await service.stop()
