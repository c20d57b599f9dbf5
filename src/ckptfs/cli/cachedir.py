"""A cache directory belongs to one store for ever, and to one daemon at a time.

``ckptfs.json`` in it names the store (*identity*); ``lock`` is locked by the daemon that uses it, and holds its pid.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ckptfs.admin import mounts
from ckptfs.errors import CkptfsError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ckptfs.env import Env

IDENTITY_NAME: Final = "ckptfs.json"
LOCK_NAME: Final = "lock"
LOG_NAME: Final = "ckptfs.log"
STDERR_NAME: Final = "ckptfs.stderr"
IDENTITY_VERSION: Final = 1
MEMORY_FILESYSTEMS: Final = frozenset({"tmpfs", "ramfs"})


def default_path(store: str) -> Path:
    """Where the cache directory of a store is when none is named.

    Args:
        store: canonical URL.
    """
    words = re.sub(r"[^A-Za-z0-9.]+", "-", store).strip("-.")[:60]
    name = f"{words}-{hashlib.sha256(store.encode(errors='surrogateescape')).hexdigest()[:8]}"
    if os.geteuid() == 0:
        return Path("/var/cache/ckptfs", name)
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "ckptfs", name)


LOCK_BYTES: Final = 20
"""Length of a lock file: a pid, blanks before it."""


@contextlib.contextmanager
def claimed(directory: Path, store: str, env: Env) -> Iterator[None]:
    """Make the cache directory if it is not there, and own it while the context is open.

    Args:
        directory: absolute, symlinks resolved.
        store: canonical URL of the store it is for.
        env: randomness, for a temporary name.

    Raises:
        UsageError: it belongs to another store, is no cache directory, or lies on a filesystem that cannot hold one.
        CkptfsError: it is in use, or cannot be written.
    """
    with contextlib.ExitStack() as held:
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            _check_filesystem(directory)
            _check_owner(directory, store)
            held.enter_context(locked(directory / LOCK_NAME, lambda pid: _in_use(directory, pid)))
            _check_owner(directory, store)  # again: only now nobody else changes it
            _write_identity(directory / IDENTITY_NAME, store, env)
        except OSError as error:
            raise CkptfsError(
                f"cannot use the cache directory: {error.filename or directory}: {error.strerror}",
                hint="Name one that this user can write with --cache-dir.",
            ) from error
        yield


@contextlib.contextmanager
def locked(path: Path, in_use: Callable[[str], CkptfsError]) -> Iterator[None]:
    """Hold the lock on ``path`` (made if it is not there) while the context is open; the pid stands in it.

    Args:
        path: of the lock file.
        in_use: the error for when another process (its pid as text) holds it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise in_use(os.pread(descriptor, LOCK_BYTES, 0).decode("ascii", "replace").strip() or "unknown") from None
        # Overwritten in place: a full disk has no block for a longer or a new one.
        os.pwrite(descriptor, f"{os.getpid()}\n".encode("ascii").rjust(LOCK_BYTES), 0)
        yield
    finally:
        os.close(descriptor)


def lies_in_memory(directory: Path) -> bool:
    """Whether what is staged there is lost when the machine loses power."""
    return mounts.filesystem_of(directory).filesystem in MEMORY_FILESYSTEMS


def _in_use(directory: Path, pid: str) -> CkptfsError:
    return CkptfsError(
        f"the cache directory is in use by another mount: {directory} (pid {pid})",
        hint="Unmount that one first ('ckptfs status' lists it), or name another --cache-dir.",
    )


def _check_filesystem(directory: Path) -> None:
    here = mounts.filesystem_of(directory)
    if here.filesystem == "fuse" or here.filesystem.startswith("fuse."):
        raise UsageError(
            f"the cache directory lies on a FUSE filesystem ({here.filesystem} at {here.mountpoint}): {directory}",
            hint="Name a directory on a local disk with --cache-dir.",
        )


def _check_owner(directory: Path, store: str) -> None:
    """Return if the directory is empty or belongs to ``store``.

    An identity binds only when there is something beside it: a first mount that failed (a typing error in the URL) must
    not spoil the directory for the right one.
    """
    contents = sorted(name for name in os.listdir(directory) if not _is_ours(name))
    if not contents:
        return
    if not (directory / IDENTITY_NAME).exists():
        raise UsageError(
            f"the cache directory holds other files ({contents[0]!r}): {directory}",
            hint="Name an empty directory, or one that does not exist yet, with --cache-dir.",
        )
    _check_identity(directory / IDENTITY_NAME, store)


def _check_identity(identity: Path, store: str) -> None:
    try:
        content = json.loads(identity.read_bytes())
        version, owner = content["version"], content["store"]
    except (ValueError, TypeError, KeyError) as error:
        raise CkptfsError(
            f"the identity of the cache directory cannot be read: {identity}: {error}",
            hint="If nothing staged there is still needed, remove the directory; else restore the file.",
        ) from None
    if version != IDENTITY_VERSION:
        raise UsageError(
            f"the cache directory was made by another version of ckptfs (format {version}): {identity.parent}",
            hint="Mount it with that version, or name another --cache-dir.",
        )
    if owner != store:
        raise UsageError(
            f"the cache directory belongs to another filesystem: {identity.parent} is that of {owner}, not of {store}",
            hint="Name another --cache-dir. If nothing staged there is still needed, it can be removed.",
        )


def _write_identity(identity: Path, store: str, env: Env) -> None:
    """Durably, whole or not at all: staged bytes are worthless without knowing where they belong."""
    content = json.dumps({"version": IDENTITY_VERSION, "store": store}).encode("ascii") + b"\n"
    if identity.exists() and identity.read_bytes() == content:
        return
    temporary = identity.with_name(f"{IDENTITY_NAME}.{env.token()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(descriptor)
    temporary.replace(identity)
    directory = os.open(identity.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _is_ours(name: str) -> bool:
    """What may lie in a directory where nothing was staged yet: remains of a failed start, and the disk's own."""
    return name in {LOCK_NAME, "lost+found"} or name.startswith((LOG_NAME, STDERR_NAME, IDENTITY_NAME))
