"""The operations of the differential test: each is a function of one side of the pair and plain arguments.

A side is a directory that the process has as its working directory while an operation runs, so every path is
relative: another user (``uid``, by ``setfsuid``) needs no right on what lies above it. What an operation returns is
compared between the sides; an OSError counts as a result by its errno.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fs_support import payload, renameat2, set_fs_ids

if TYPE_CHECKING:
    from collections.abc import Iterator

NOW_WINDOW_NS = 86_400 * 10**9
"""Times within a day of this moment were stamped by a clock, all others were set by an operation."""

DIRECT_BLOCK_BYTES = 4096


@dataclass
class Description:
    """What descriptors made by ``dup`` share.

    Attributes:
        flags: of the open.
        is_new: the open made the file.
        shielded: it goes on reading a content that was replaced.
    """

    flags: int
    is_new: bool
    shielded: bool = False

    @property
    def writes(self) -> bool:
        """Whether it is a writer in the sense of the O_TRUNC shield: may write, or began the content."""
        began = self.is_new or bool(self.flags & os.O_TRUNC)
        return not self.flags & os.O_PATH and (began or bool(self.flags & (os.O_WRONLY | os.O_RDWR)))

    @property
    def reads_only(self) -> bool:
        """Whether it is a reader in the sense of the O_TRUNC shield."""
        return not self.flags & os.O_PATH and not self.writes


@dataclass
class Handle:
    """One descriptor, and the open that it stands for."""

    fd: int
    description: Description


@dataclass
class Side:
    """One side of the pair: the mount, or the local directory."""

    root_fd: int
    handles: dict[int, Handle] = field(default_factory=dict)

    def fd(self, slot: int) -> int:
        """Descriptor in a slot; -1 when the slot is empty (calls then fail with EBADF on both sides)."""
        handle = self.handles.get(slot)
        return -1 if handle is None else handle.fd

    def close_all(self) -> None:
        """Close every handle."""
        for handle in self.handles.values():
            os.close(handle.fd)
        self.handles.clear()


@contextlib.contextmanager
def acting_as(uid: int) -> Iterator[None]:
    """File access of this thread as ``uid``."""
    set_fs_ids(uid, uid)
    try:
        yield
    finally:
        set_fs_ids(0, 0)


def timestamp(value_ns: int) -> int | str:
    """A time that was set, exactly; one that a clock stamped, as a word."""
    return "now" if abs(value_ns - time.time_ns()) < NOW_WINDOW_NS else value_ns


def describe(status: os.stat_result) -> tuple[object, ...]:
    """What two filesystems must agree on in a stat: not device, inode number, blocks, or the size of a directory."""
    size = None if stat.S_ISDIR(status.st_mode) else status.st_size
    mtime = None if stat.S_ISFIFO(status.st_mode) else timestamp(status.st_mtime_ns)  # the kernel's pipe has its own
    mode = status.st_mode
    if stat.S_ISREG(mode) and not mode & stat.S_IXGRP:
        mode &= ~stat.S_ISGID  # means nothing; only a local filesystem drops it on a write from outside the group
    return (oct(mode), status.st_nlink, status.st_uid, status.st_gid, size, mtime)


# --- handles -----------------------------------------------------------------------------------------------------


def op_open(side: Side, into: int, path: bytes, access: int, extra: tuple[int, ...], mode: int, uid: int) -> object:
    flags = access | os.O_NONBLOCK | os.O_CLOEXEC
    for flag in extra:
        flags |= flag
    if into in side.handles:
        os.close(side.handles.pop(into).fd)
    is_new = not os.path.exists(path)
    with acting_as(uid):
        fd = os.open(path, flags, mode)
    side.handles[into] = Handle(fd, Description(flags, is_new))
    return describe(os.fstat(fd))


def op_close(side: Side, slot: int) -> object:
    handle = side.handles.pop(slot, None)
    if handle is not None:
        os.close(handle.fd)
    return None


def op_dup(side: Side, slot: int, into: int) -> object:
    fd = os.dup(side.fd(slot))
    op_close(side, into)
    source = side.handles.get(slot)
    if source is None:  # the source was closed because it is the target
        os.close(fd)
        return None
    side.handles[into] = Handle(fd, source.description)
    return None


def op_read(side: Side, slot: int, length: int) -> object:
    return os.read(side.fd(slot), length)


def op_pread(side: Side, slot: int, length: int, offset: int) -> object:
    return os.pread(side.fd(slot), length, offset)


def op_write(side: Side, slot: int, length: int, seed: int, uid: int) -> object:
    with acting_as(uid):
        return os.write(side.fd(slot), payload(length, seed))


def op_pwrite(side: Side, slot: int, length: int, offset: int, seed: int) -> object:
    return os.pwrite(side.fd(slot), payload(length, seed), offset)


def op_pwritev(side: Side, slot: int, offset: int, seed: int) -> object:
    return os.pwritev(side.fd(slot), [payload(100, seed), b"", payload(5000, seed + 1)], offset)


def op_lseek(side: Side, slot: int, offset: int, whence: int) -> object:
    fd = side.fd(slot)
    if fd >= 0 and stat.S_ISDIR(os.fstat(fd).st_mode):
        return "positions in a directory mean nothing"
    return os.lseek(fd, offset, whence)


def op_fstat(side: Side, slot: int) -> object:
    handle = side.handles.get(slot)
    if handle is not None and handle.description.shielded:
        return os.fstat(handle.fd).st_size
    return describe(os.fstat(side.fd(slot)))


def op_ftruncate(side: Side, slot: int, length: int) -> object:
    fd = side.fd(slot)
    same_size = os.fstat(fd).st_size == length
    os.ftruncate(fd, length)
    if same_size:
        os.utime(fd)  # with its write-back cache the kernel stamps a truncation only where the size changes
    return None


def op_fsync(side: Side, slot: int) -> object:
    return os.fsync(side.fd(slot))


def op_fdatasync(side: Side, slot: int) -> object:
    return os.fdatasync(side.fd(slot))


def op_fchmod(side: Side, slot: int, mode: int) -> object:
    return os.fchmod(side.fd(slot), mode)


def op_futimens(side: Side, slot: int, mtime_ns: int) -> object:
    return os.utime(side.fd(slot), ns=(mtime_ns, mtime_ns))


def op_fsetxattr(side: Side, slot: int, name: str, value: bytes) -> object:
    return os.setxattr(side.fd(slot), name, value)


def op_posix_fallocate(side: Side, slot: int, offset: int, length: int) -> object:
    handle = side.handles.get(slot)
    if handle is not None and (handle.description.flags & (os.O_WRONLY | os.O_APPEND)):
        return "the C library's stand-in for a driver without fallocate needs to read (posix_fallocate(3), BUGS)"
    os.posix_fallocate(side.fd(slot), offset, length)
    os.utime(side.fd(slot))  # whether a byte was written, and so a time moved, is the stand-in's affair
    return None


def op_copy_file_range(side: Side, slot: int, slot2: int, length: int, offset: int, target_offset: int) -> object:
    copied = 0
    while copied < length:
        count = os.copy_file_range(
            side.fd(slot), side.fd(slot2), length - copied, offset + copied, target_offset + copied
        )
        if count == 0:
            break
        copied += count
    return copied


def op_sendfile(side: Side, slot: int, slot2: int, length: int) -> object:
    return os.sendfile(side.fd(slot2), side.fd(slot), 0, length)


def _mappable_size(side: Side, slot: int) -> int:
    status = os.fstat(side.fd(slot))
    if stat.S_ISDIR(status.st_mode):
        raise ValueError("a directory")  # whose size is the filesystem's affair
    return status.st_size


def op_mmap_read(side: Side, slot: int) -> object:
    size = _mappable_size(side, slot)
    with mmap.mmap(side.fd(slot), size, access=mmap.ACCESS_READ) as view:
        return bytes(view)


def op_mmap_write(side: Side, slot: int, position: int, length: int, seed: int) -> object:
    fd, size = side.fd(slot), _mappable_size(side, slot)
    with mmap.mmap(fd, size) as view:
        start = position % size
        data = payload(min(length, size - start), seed)
        view[start : start + len(data)] = data
        if seed % 2:
            view.flush()
    return os.pread(fd, size, 0) if size < 1 << 20 else None


# --- names -------------------------------------------------------------------------------------------------------


def op_lstat(side: Side, path: bytes, uid: int) -> object:  # noqa: ARG001 - the side is the working directory
    with acting_as(uid):
        return describe(os.lstat(path))


def op_stat(side: Side, path: bytes) -> object:  # noqa: ARG001
    return describe(os.stat(path))


def op_mkdir(side: Side, path: bytes, mode: int, uid: int) -> object:  # noqa: ARG001
    with acting_as(uid):
        return os.mkdir(path, mode)


def op_rmdir(side: Side, path: bytes, uid: int) -> object:  # noqa: ARG001
    with acting_as(uid):
        return os.rmdir(path)


def op_unlink(side: Side, path: bytes, uid: int) -> object:  # noqa: ARG001
    with acting_as(uid):
        return os.unlink(path)


def op_rename(side: Side, path: bytes, target: bytes, flags: int, uid: int) -> object:  # noqa: ARG001
    with acting_as(uid):
        return renameat2(path, target, flags)


def op_link(side: Side, path: bytes, target: bytes, uid: int) -> object:  # noqa: ARG001
    with acting_as(uid):
        return os.link(path, target, follow_symlinks=False)


def op_symlink(side: Side, target: bytes, path: bytes, uid: int) -> object:  # noqa: ARG001
    with acting_as(uid):
        return os.symlink(target, path)


def op_readlink(side: Side, path: bytes) -> object:  # noqa: ARG001
    return os.readlink(path)


def op_mknod(side: Side, path: bytes, kind: int, mode: int, uid: int) -> object:  # noqa: ARG001
    with acting_as(uid):
        return os.mknod(path, kind | mode)


def op_truncate(side: Side, path: bytes, length: int, uid: int) -> object:  # noqa: ARG001
    same_size = os.path.exists(path) and os.stat(path).st_size == length
    with acting_as(uid):
        os.truncate(path, length)
    if same_size:
        os.utime(path)  # as op_ftruncate
    return None


def op_chmod(side: Side, path: bytes, mode: int, uid: int) -> object:  # noqa: ARG001
    with acting_as(uid):
        return os.chmod(path, mode)


def op_chown(side: Side, path: bytes, owner: int, group: int, follow: bool, uid: int) -> object:  # noqa: ARG001, FBT001
    with acting_as(uid):
        return os.chown(path, owner, group, follow_symlinks=follow)


def op_utimens(side: Side, path: bytes, mtime_ns: int | None, follow: bool, uid: int) -> object:  # noqa: ARG001, FBT001
    with acting_as(uid):
        if mtime_ns is None:
            os.utime(path, None, follow_symlinks=follow)
        else:
            os.utime(path, ns=(mtime_ns // 2, mtime_ns), follow_symlinks=follow)
    status = os.stat(path, follow_symlinks=follow)
    return timestamp(status.st_atime_ns), timestamp(status.st_mtime_ns)


def op_access(side: Side, path: bytes, mode: int) -> object:  # noqa: ARG001
    return os.access(path, mode)


def op_listdir(side: Side, path: bytes, uid: int) -> object:  # noqa: ARG001
    with acting_as(uid), os.scandir(path) as entries:
        return sorted(
            (entry.name, entry.is_dir(follow_symlinks=False), entry.is_file(follow_symlinks=False), entry.is_symlink())
            for entry in entries
        )


def op_fsync_directory(side: Side, path: bytes) -> object:  # noqa: ARG001
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return os.fsync(fd)
    finally:
        os.close(fd)


def op_setxattr(side: Side, path: bytes, name: str, value: bytes, flags: int, uid: int) -> object:  # noqa: ARG001
    with acting_as(uid):
        return os.setxattr(path, name, value, flags)


def op_getxattr(side: Side, path: bytes, name: str, uid: int) -> object:  # noqa: ARG001
    with acting_as(uid):
        return os.getxattr(path, name)


def op_listxattr(side: Side, path: bytes) -> object:  # noqa: ARG001
    return sorted(name for name in os.listxattr(path) if not name.startswith("security."))


def op_removexattr(side: Side, path: bytes, name: str, uid: int) -> object:  # noqa: ARG001
    with acting_as(uid):
        return os.removexattr(path, name)


def op_set_acl(side: Side, path: bytes, default: bool, acl: bytes, uid: int) -> object:  # noqa: ARG001, FBT001
    with acting_as(uid):
        return os.setxattr(path, f"system.posix_acl_{'default' if default else 'access'}", acl)


def op_direct_write(side: Side, path: bytes, block: int, count: int, seed: int) -> object:  # noqa: ARG001
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT | os.O_NONBLOCK, 0o644)
    try:
        with mmap.mmap(-1, count * DIRECT_BLOCK_BYTES) as buffer:
            buffer[:] = payload(len(buffer), seed)
            written = os.pwritev(fd, [buffer], block * DIRECT_BLOCK_BYTES)
            buffer[:] = bytes(len(buffer))
            read = os.preadv(fd, [buffer], block * DIRECT_BLOCK_BYTES)
            return written, read, bytes(buffer)
    finally:
        os.close(fd)
