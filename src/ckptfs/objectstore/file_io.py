"""System calls of the ``file://`` store: names under the root, locks, temporary files, the commit. All of it blocks.

Names are resolved component by component with ``O_NOFOLLOW`` below the root: nothing in the tree can lead out of it,
and a symlink in it is neither an object nor a directory.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import stat
from typing import TYPE_CHECKING

from ckptfs.errors import (
    BucketNotFoundError,
    ObjectNotFoundError,
    PreconditionError,
    StoreDeniedError,
    StoreError,
    StoreRejectedError,
    StoreUnavailableError,
)
from ckptfs.objectstore.file_meta import MetadataKeeper, Noted, etag_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ckptfs.objectstore.base import Body, Condition
    from ckptfs.types import Key

OWN_COMPONENTS = (b".ckptfs", b"tmp")
"""Where the store keeps temporary files, parts and its lock; no object can be under it."""

_NAME_BYTES_MAX = 255
_COPY_BYTES = 64 << 20
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_RACES_MAX = 1000
"""Times that a directory may vanish under a commit before the disk is called unavailable."""

_RENAME_NOREPLACE = 1
_libc = ctypes.CDLL(None, use_errno=True)

_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}
_REJECTED = {
    errno.ENAMETOOLONG,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EILSEQ,
    errno.EINVAL,
    errno.EFBIG,
    errno.EXDEV,
    errno.ELOOP,
}


def error_of(e: OSError, what: str) -> StoreError:
    """The store error that stands for ``e``, met while doing ``what``.

    A missing *object* is known as such where it is looked up. ENOENT here is something of the store's own that
    vanished.
    """
    message = f"{what}: {e.strerror or e}"
    if e.errno in _DENIED:
        return StoreDeniedError(message, hint="check the permissions of the store's directory")
    if e.errno in _REJECTED:
        return StoreRejectedError(message)
    hint = "free some space on the store's disk" if e.errno in {errno.ENOSPC, errno.EDQUOT} else ""
    return StoreUnavailableError(message, hint=hint)


def components_of(key: Key | str) -> list[bytes] | None:
    """File names from the root down to ``key``; ``None`` if no file can have this key."""
    components = os.fsencode(key).split(b"/")
    odd = any(c in {b"", b".", b".."} or len(c) > _NAME_BYTES_MAX or b"\0" in c for c in components)
    own = tuple(components[: len(OWN_COMPONENTS)]) == OWN_COMPONENTS
    return None if odd or own else components


def fsync_path(path: str) -> None:
    """Make the entries of the directory ``path`` durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_all(fd: int, body: Body) -> None:
    """Write every byte of ``body``; the kernel takes at most 2 GiB a call."""
    view = memoryview(body).cast("B")
    written = 0
    while written < len(view):
        written += os.write(fd, view[written : written + _COPY_BYTES])


def copy_all(source: int, target: int, size: int) -> None:
    """Append ``size`` bytes of ``source`` to ``target`` inside the kernel (shared extents where the filesystem can).

    Raises:
        OSError: EIO when ``source`` is shorter.
    """
    done = 0
    while done < size:
        count = min(_COPY_BYTES, size - done)
        try:
            copied = os.copy_file_range(source, target, count, offset_src=done)
        except OSError as e:
            if e.errno not in {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}:
                raise
            copied = os.sendfile(target, source, done, count)
        if copied == 0:
            raise OSError(errno.EIO, "the source became shorter while it was copied")
        done += copied


class FileTree:
    """The directory of a store and everything that is done by name in it.

    Args:
        root: absolute path of the store's directory, which must exist.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self.own = "/".join((root, *(os.fsdecode(c) for c in OWN_COMPONENTS)))
        self.meta = MetadataKeeper(f"{self.own}/meta")

    def open_root(self) -> int:
        """A descriptor of the store's directory.

        Raises:
            BucketNotFoundError: it is not there.
        """
        try:
            return os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError) as e:
            raise BucketNotFoundError(
                f"the store's directory {self.root!r} does not exist", hint=f"create it: mkdir -p {self.root!r}"
            ) from e

    def make_own(self) -> None:
        """Make the directory of temporary files, and remove what ended processes left in it."""
        os.close(self.open_root())
        os.makedirs(self.own, exist_ok=True)
        fsync_path(self.root)
        fsync_path(os.path.dirname(self.own))
        with os.scandir(self.own) as entries:
            left = [entry.path for entry in entries if entry.name.startswith("put-")]
        for path in left:
            _unlink_if_abandoned(path)

    @contextlib.contextmanager
    def directory(self, components: Sequence[bytes], *, create: bool = False) -> Iterator[int]:
        """A descriptor of the directory at ``components``, made (durably) on the way with ``create``."""
        fd = self.open_root()
        try:
            for component in components:
                below = _open_below(fd, component, create=create)
                os.close(fd)
                fd = below
            yield fd
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def object_fd(self, key: Key) -> Iterator[tuple[int, os.stat_result]]:
        """The object's file, open for reading, and its status.

        Raises:
            ObjectNotFoundError: there is no regular file of this name.
        """
        components = components_of(key)
        missing = ObjectNotFoundError(f"no object {key!r}")
        if components is None:
            raise missing
        try:
            with self.directory(components[:-1]) as parent:
                # O_NONBLOCK: another tool may have put a FIFO there.
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                fd = os.open(components[-1], flags, dir_fd=parent)
        except OSError as e:
            if e.errno in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.ENAMETOOLONG}:
                raise missing from e
            raise
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise missing
            yield fd, status
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def temporary(self, name: str) -> Iterator[tuple[int, str]]:
        """A new file under the store's own directory, locked as long as it is open; removed if it got no other name."""
        fd, path = self._create_locked(f"{self.own}/put-{name}")
        try:
            yield fd, path
        finally:
            os.close(fd)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    def _create_locked(self, path: str) -> tuple[int, str]:
        """Create a temporary file whose lock says that it has a living owner."""
        for turn in range(_RACES_MAX):
            tried = f"{path}-{turn}"
            fd = os.open(tried, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            fcntl.flock(fd, fcntl.LOCK_EX)
            if os.fstat(fd).st_nlink > 0:
                return fd, tried
            os.close(fd)  # a starting process came between create and lock, and took it for abandoned
        raise StoreUnavailableError("temporary files keep vanishing", hint="another process removes them")

    @contextlib.contextmanager
    def locked(self, *, exclusive: bool) -> Iterator[None]:
        """The lock that makes "look, then rename" one act among all processes that use this store.

        Whoever only renames or removes holds it shared; whoever decides on what is there holds it alone.
        """
        fd = os.open(f"{self.own}/lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
            yield
        finally:
            os.close(fd)

    def commit(
        self, fd: int, path: str, key: Key, condition: Condition, *, metadata: Mapping[str, str], mtime_ns: int
    ) -> os.stat_result:
        """Give the temporary file at ``path`` (open as ``fd``, written, not yet synced) the name ``key``, durably.

        Raises:
            PreconditionError: ``condition`` did not hold.
            StoreRejectedError: no file can have this name here.
        """
        components = components_of(key)
        if components is None:
            raise StoreRejectedError(
                f"no file can be named {key!r}",
                hint="a file:// store takes keys that are relative paths of names up to 255 bytes",
            )
        os.utime(fd, ns=(mtime_ns, mtime_ns))
        self.meta.write(fd, Noted(os.fstat(fd).st_size, mtime_ns, metadata))
        os.fsync(fd)
        for _ in range(_RACES_MAX):
            try:
                return self._name(fd, path, components, key, condition)
            except FileNotFoundError:
                if os.fstat(fd).st_nlink == 0:
                    raise
                # A delete removed the emptied directory between our opening it and the rename: make it again.
        raise StoreUnavailableError(f"the directory of {key!r} keeps vanishing")

    def _name(self, fd: int, path: str, components: Sequence[bytes], key: Key, condition: Condition) -> os.stat_result:
        with self.directory(components[:-1], create=True) as parent:
            name = components[-1]
            with self.locked(exclusive=condition.etag is not None):
                replaced = _status_in(parent, name)
                _check_replaceable(replaced, parent, name, key)
                if condition.etag is not None and (replaced is None or etag_of(replaced) != condition.etag):
                    raise PreconditionError(f"{key!r} is not the generation {condition.etag!r}")
                if condition.absent:
                    _rename_to_absent(path, parent, name, key)
                else:
                    os.rename(path, name, dst_dir_fd=parent)
            os.fsync(parent)
            if replaced is not None:
                self.meta.forget(replaced)
            return os.fstat(fd)

    def remove(self, key: Key, condition: Condition) -> None:
        """Remove the object and the directories that this leaves empty, durably.

        Raises:
            PreconditionError: the etag of ``condition`` is not there.
        """
        components = components_of(key)
        status = None
        if components is not None:
            try:
                with self.directory(components[:-1]) as parent:
                    with self.locked(exclusive=condition.etag is not None):
                        status = _status_in(parent, components[-1])
                        if status is not None and not stat.S_ISREG(status.st_mode):
                            status = None
                        if status is not None and condition.etag in {None, etag_of(status)}:
                            os.unlink(components[-1], dir_fd=parent)
                    os.fsync(parent)
            except (FileNotFoundError, NotADirectoryError):
                status = None
        if condition.etag is not None and (status is None or etag_of(status) != condition.etag):
            raise PreconditionError(f"{key!r} is not the generation {condition.etag!r}")
        if status is not None and components is not None:
            self.meta.forget(status)
            self._prune(components[:-1])

    def _prune(self, components: Sequence[bytes]) -> None:
        """Remove directories from ``components`` upwards as long as they are empty."""
        for depth in range(len(components), 0, -1):
            try:
                with self.directory(components[: depth - 1]) as parent:
                    os.rmdir(components[depth - 1], dir_fd=parent)
            except OSError as e:
                if e.errno in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT, errno.ENOTDIR, errno.EBUSY}:
                    return
                raise


def _open_below(parent: int, name: bytes, *, create: bool) -> int:
    for _ in range(_RACES_MAX):
        try:
            return os.open(name, _DIRECTORY, dir_fd=parent)
        except FileNotFoundError:
            if not create:
                raise
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, dir_fd=parent)
            os.fsync(parent)
    raise OSError(errno.EAGAIN, "directory keeps vanishing")


def _status_in(parent: int, name: bytes) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _check_replaceable(status: os.stat_result | None, parent: int, name: bytes, key: Key) -> None:
    """Raise unless ``name`` is free or a regular file; an empty directory, which is no object, gives way."""
    if status is None or stat.S_ISREG(status.st_mode):
        return
    if stat.S_ISDIR(status.st_mode):
        try:
            os.rmdir(name, dir_fd=parent)
        except FileNotFoundError:
            return
        except OSError as e:
            raise StoreRejectedError(
                f"{key!r} is a directory of other objects, so it cannot be an object itself"
            ) from e
        return
    raise StoreRejectedError(f"{key!r} is neither a file nor a directory", hint="move away what another tool put there")


def _rename_to_absent(path: str, parent: int, name: bytes, key: Key) -> None:
    """Name the file ``path`` in ``parent`` unless the name is taken, in one act that no other tool can split."""
    taken = PreconditionError(f"{key!r} is already there")
    if _libc.renameat2(-100, os.fsencode(path), parent, name, _RENAME_NOREPLACE) == 0:
        return
    code = ctypes.get_errno()
    if code == errno.EEXIST:
        raise taken
    if code not in {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP}:
        raise OSError(code, os.strerror(code), path)
    # This filesystem cannot: a hard link is as atomic. The second name is gone before anyone may learn the etag.
    try:
        os.link(path, name, dst_dir_fd=parent)
    except FileExistsError as e:
        raise taken from e
    os.unlink(path)


def _unlink_if_abandoned(path: str) -> None:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)
    except (BlockingIOError, FileNotFoundError):
        return
    finally:
        os.close(fd)
