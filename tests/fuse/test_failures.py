"""An exception in a handler is the caller's errno, logged and counted; it never ends the session."""

from __future__ import annotations

import errno
import logging
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pyfuse3
import pytest
import trio

from ckptfs.errors import IntegrityError, PosixError, SpaceError, StoreUnavailableError
from ckptfs.fuse.operations import Operations

if TYPE_CHECKING:
    from ckptfs.vfs import Vfs


def operations_that_raise(error: BaseException) -> Operations:
    """Handlers over a filesystem whose every ``lookup`` and ``forget`` fails with ``error``."""

    async def lookup(*_: object) -> None:
        await trio.lowlevel.checkpoint()
        raise error

    def forget(*_: object) -> None:
        raise error

    vfs: Vfs = SimpleNamespace(names=SimpleNamespace(lookup=lookup), core=SimpleNamespace(forget=forget))  # type: ignore[assignment]
    return Operations(vfs, timeout_s=1.0)


@pytest.mark.parametrize(
    ("error", "code", "counted"),
    [
        (PosixError(errno.ENOTEMPTY), errno.ENOTEMPTY, 0),
        (SpaceError("no room"), errno.ENOSPC, 1),
        (IntegrityError("wrong bytes"), errno.EIO, 1),
        (StoreUnavailableError("no answer"), errno.EIO, 1),
        (OSError(errno.ENOSPC, "no space"), errno.ENOSPC, 1),
        (OSError(errno.EIO, "broken"), errno.EIO, 1),
        (FileNotFoundError(errno.ENOENT, "the daemon's own file"), errno.EIO, 1),
        (KeyError("a bug"), errno.EIO, 1),
        (AssertionError("a bug"), errno.EIO, 1),
        (RecursionError(), errno.EIO, 1),
    ],
)
def test_an_error_is_the_callers_errno(
    error: Exception, code: int, counted: int, caplog: pytest.LogCaptureFixture
) -> None:
    operations = operations_that_raise(error)

    async def run() -> None:
        with pytest.raises(pyfuse3.FUSEError) as raised:
            await operations.lookup(1, b"name", pyfuse3.RequestContext.__new__(pyfuse3.RequestContext))
        assert raised.value.errno == code

    with caplog.at_level(logging.ERROR):
        trio.run(run)
    assert operations.failures.get("lookup", 0) == counted
    assert len(caplog.records) == counted
    if isinstance(error, KeyError):
        assert caplog.records[0].exc_info is not None, "an unexpected error is logged with its traceback"


def test_forget_has_no_answer_so_its_error_is_only_logged_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    operations = operations_that_raise(KeyError("a bug"))

    async def run() -> None:
        await operations.forget([(2, 1)])

    trio.run(run)
    assert operations.failures == {"forget": 1}
    assert len(caplog.records) == 1


def test_an_interrupted_handler_is_not_swallowed() -> None:
    """Cancellation ends the session's tasks; it is not an error of the call."""
    operations = operations_that_raise(KeyboardInterrupt())

    async def run() -> None:
        await operations.lookup(1, b"name", pyfuse3.RequestContext.__new__(pyfuse3.RequestContext))

    with pytest.raises(KeyboardInterrupt):
        trio.run(run)
