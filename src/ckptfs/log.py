"""Where log lines go: standard error in the foreground, a rotating file in the cache directory for a daemon.

A line is ``2026-01-31T12:00:00.123Z WARNING ckptfs.publish: what happened``. Lines are written by a thread of their own
behind a bounded queue, so that neither a stalled disk nor a stopped terminal holds up the event loop.
"""

from __future__ import annotations

import contextlib
import logging
import logging.handlers
import queue
import sys
from typing import TYPE_CHECKING

from ckptfs import limits

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_LOGGER = logging.getLogger(__name__)
_QUIET = ("boto3", "botocore", "s3transfer", "urllib3", "trio")
"""Libraries whose own details drown ours: they get a say from WARNING on."""


class Formatter(logging.Formatter):
    """UTC, milliseconds. Further lines of a message are indented: an entry begins where a line begins with a date."""

    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        return super().format(record).replace("\n", "\n    ")

    @staticmethod
    def converter(timestamp: float | None) -> object:  # type: ignore[override] # typeshed has it as an attribute
        return _utc(timestamp)


def _utc(timestamp: float | None) -> object:
    from time import gmtime  # noqa: TID251 - formats a timestamp that logging took; reads no clock

    return gmtime(timestamp)


class _BoundedQueueHandler(logging.handlers.QueueHandler):
    """Hands records to the writing thread; drops and counts them while the queue is full."""

    def __init__(self, lines: queue.Queue[logging.LogRecord]) -> None:
        super().__init__(lines)
        self._lines = lines
        self.dropped_count = 0

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            if self.dropped_count and not self._lines.full():
                count, self.dropped_count = self.dropped_count, 0
                self._lines.put_nowait(
                    _note(f"{count} log lines were dropped: the log could not be written fast enough")
                )
            self._lines.put_nowait(record)
        except queue.Full:
            self.dropped_count += 1


def _note(message: str) -> logging.LogRecord:
    return _LOGGER.makeRecord(_LOGGER.name, logging.WARNING, __file__, 0, message, (), None)


@contextlib.contextmanager
def logging_to(file: Path | None, level: str) -> Iterator[None]:
    """Log to ``file`` (rotating) or standard error while the context is open; every line is out when it closes.

    Args:
        file: the log file; ``None`` for standard error.
        level: one of :data:`ckptfs.settings.LOG_LEVELS`.

    Raises:
        OSError: the file cannot be opened.
    """
    target: logging.Handler
    if file is None:
        target = logging.StreamHandler(sys.stderr)
    else:
        target = logging.handlers.RotatingFileHandler(
            file,
            maxBytes=limits.LOG_FILE_BYTES,
            backupCount=limits.LOG_FILE_COUNT - 1,
            encoding="utf-8",
            errors="backslashreplace",
        )
    target.setFormatter(Formatter())
    lines: queue.Queue[logging.LogRecord] = queue.Queue(limits.LOG_QUEUE_LINES_MAX)
    handler = _BoundedQueueHandler(lines)
    writer = logging.handlers.QueueListener(lines, target)
    root = logging.getLogger()
    root.setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    logging.captureWarnings(capture=True)
    root.addHandler(handler)
    writer.start()
    try:
        yield
    finally:
        root.removeHandler(handler)
        logging.captureWarnings(capture=False)
        writer.stop()
        target.close()
