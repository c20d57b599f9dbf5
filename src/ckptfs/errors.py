"""Errors, named by what the one who sees them must do.

::

    CkptfsError
    ├── UsageError               the command or its arguments are wrong: change them        exit 2
    ├── NotMountedError          nothing is mounted or no such path: look elsewhere         exit 3
    ├── IntegrityError           bytes do not match their digest: do not trust them         exit 4  EIO
    ├── DeadlineError            it took longer than allowed: wait or raise the deadline    exit 5  ETIMEDOUT
    ├── SpaceError               staging has no room: free some                             exit 1  ENOSPC
    ├── NamespaceConflictError   not raised to users: a state change found another state    exit 1  EIO
    └── StoreError               the object store said no                                   exit 1  EIO
        ├── ObjectNotFoundError      no such key, upload or bucket object                   exit 1  ENOENT
        ├── BucketNotFoundError      the bucket does not exist: create it or fix the URL    exit 1  ENOENT
        ├── PreconditionError        if_match or if_none_match did not hold: look again     exit 1  ESTALE
        ├── StoreDeniedError         credentials are missing, wrong or lack a right         exit 1  EACCES
        ├── StoreRejectedError       the request can never succeed as it is                 exit 1  EINVAL
        ├── StoreCorruptionError     a checksum of the transfer did not match               exit 1  EIO
        └── StoreUnavailableError    network, throttling, 5xx: the same call may succeed    exit 1  EIO

``PERMANENT`` names the store errors for which a retry is pointless.
"""

from __future__ import annotations

import errno as _errno
from typing import ClassVar


class CkptfsError(Exception):
    """Base of every error that ckptfs raises on purpose.

    Args:
        message: what happened, to which thing.
        hint: what to do next, one sentence; empty where there is nothing to do.
    """

    errno: ClassVar[int] = _errno.EIO
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class UsageError(CkptfsError):
    """The command line, a setting or a URL is wrong."""

    errno = _errno.EINVAL
    exit_code = 2


class NotMountedError(CkptfsError):
    """The mountpoint or path asked about is not there."""

    errno = _errno.ENOENT
    exit_code = 3


class IntegrityError(CkptfsError):
    """Bytes do not match the digest that was fixed when they were sealed."""

    exit_code = 4


class DeadlineError(CkptfsError):
    """A call did not end within its deadline."""

    errno = _errno.ETIMEDOUT
    exit_code = 5


class SpaceError(CkptfsError):
    """Staging has no room for the bytes."""

    errno = _errno.ENOSPC


class NamespaceConflictError(CkptfsError):
    """A state change found the namespace in another state than it was decided on."""


class StoreError(CkptfsError):
    """The object store failed a call."""


class ObjectNotFoundError(StoreError):
    """There is no object (or upload) under this key."""

    errno = _errno.ENOENT


class BucketNotFoundError(StoreError):
    """The bucket, container or directory itself does not exist."""

    errno = _errno.ENOENT


class PreconditionError(StoreError):
    """The object is not in the state that ``if_match`` or ``if_none_match`` asked for."""

    errno = _errno.ESTALE


class StoreDeniedError(StoreError):
    """Credentials are missing, wrong, or lack the right."""

    errno = _errno.EACCES


class StoreRejectedError(StoreError):
    """The store will never take this request as it is (bad key, too large, not supported)."""

    errno = _errno.EINVAL


class StoreCorruptionError(StoreError):
    """The checksum of a transfer did not match."""


class StoreUnavailableError(StoreError):
    """Network trouble, throttling or a server error: the same call may succeed later.

    Args:
        message: what happened.
        hint: what to do.
        retry_after_s: how long the store asked to wait, seconds; ``None`` if it did not say.
    """

    def __init__(self, message: str, *, hint: str = "", retry_after_s: float | None = None) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_s = retry_after_s


PERMANENT: tuple[type[StoreError], ...] = (
    ObjectNotFoundError,
    BucketNotFoundError,
    PreconditionError,
    StoreDeniedError,
    StoreRejectedError,
)
"""Store errors that the same call would meet again."""


class PosixError(Exception):
    """Not a failure but the answer that POSIX gives to a call: its errno goes to the caller as it is.

    Kept apart from :class:`OSError`, so that an error of the daemon's own disk is never taken for an answer.
    """

    def __init__(self, code: int) -> None:
        super().__init__(_errno.errorcode.get(code, str(code)))
        self.errno = code
