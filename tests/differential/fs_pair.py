"""The pair of the differential test: the same operation on the mount and on a local directory, results compared.

One deviation is part of the model (DESIGN §2, *the old content is shielded*): opening with ``O_TRUNC``, or truncating
to zero by name, a file that no writer has open, while readers have, begins a new content, and those readers keep
reading the old bytes. The local side is made to do the same: such readers are moved to a copy of the old bytes, at the
position where they stood. What a shielded reader may still be asked is what concerns its bytes; its inode's attributes
are not the path's any more.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fs_operations as ops
from fs_operations import Handle, Side, describe, timestamp

if TYPE_CHECKING:
    from collections.abc import Callable

Outcome = tuple[str, object]

ALL_PATHS = 64
"""Numbers below mean any path there is, from here on that of an open handle."""

_OF_BYTES = frozenset(
    (
        ops.op_close,
        ops.op_dup,
        ops.op_read,
        ops.op_pread,
        ops.op_write,
        ops.op_pwrite,
        ops.op_pwritev,
        ops.op_lseek,
        ops.op_fstat,
        ops.op_ftruncate,
        ops.op_fsync,
        ops.op_fdatasync,
        ops.op_posix_fallocate,
        ops.op_copy_file_range,
        ops.op_sendfile,
        ops.op_mmap_read,
        ops.op_mmap_write,
        ops.op_open,
    )
)


def reference_directory() -> Path:
    """A new local directory whose filesystem has what the mount promises: user attributes, ACLs and O_DIRECT."""
    wanted = os.environ.get("CKPTFS_TEST_REFERENCE_DIR")
    refused = []
    for parent in (wanted,) if wanted else (tempfile.gettempdir(), "/var/tmp", "/dev/shm"):
        root = Path(tempfile.mkdtemp(prefix="ckptfs-reference-", dir=parent))
        probe = root / "probe"
        try:
            os.close(os.open(probe, os.O_CREAT | os.O_RDWR | os.O_DIRECT))
            os.setxattr(probe, "user.a", b"1")
            os.getxattr(probe, "user.a")
            os.setxattr(
                probe,
                "system.posix_acl_access",
                bytes.fromhex("0200000001000600ffffffff04000400ffffffff20000400ffffffff"),
            )
        except OSError as error:
            refused.append(f"{parent}: {error}")
        else:
            probe.unlink()
            return root
    message = f"no local filesystem to compare with: {refused}; name one in CKPTFS_TEST_REFERENCE_DIR"
    raise AssertionError(message)


class Pair:
    """A directory on the mount and one on the local filesystem that go through the same operations.

    Args:
        mount: new directory on the mount.
        local: new directory on the local filesystem.
        scratch: local directory for the copies that shielded readers read.
    """

    def __init__(self, mount: Path, local: Path, scratch: Path) -> None:
        self.mount_path = mount
        self.local_path = local
        self.mount = Side(os.open(mount, os.O_RDONLY | os.O_DIRECTORY))
        self.local = Side(os.open(local, os.O_RDONLY | os.O_DIRECTORY))
        self._scratch = scratch
        self._trace: list[str] = []

    def run(self, operation: Callable[..., object], arguments: dict[str, Any]) -> None:
        """Run it on both sides.

        Raises:
            AssertionError: the sides disagree; carries the operations so far, with what each gave.
        """
        arguments = self._resolved(arguments)
        handle = self.local.handles.get(arguments.get("slot", -1))
        if handle is not None and handle.description.shielded and operation not in _OF_BYTES:
            return
        shielded = self._readers_to_shield(operation, arguments)
        expected = self._outcome(self.local, operation, arguments)
        actual = self._outcome(self.mount, operation, arguments)
        self._settle_shield(shielded, succeeded=expected[0] == "gave")
        for slot, local in self.local.handles.items():
            if slot in self.mount.handles:
                self.mount.handles[slot].description.shielded = local.description.shielded
        told = ", ".join(f"{name}={_cut(value)}" for name, value in arguments.items())
        self._trace.append(f"{operation.__name__}({told}) {_short(expected)}")
        assert actual == expected, "\n  ".join(
            ("the mount disagrees with the local directory after", *self._trace, f"mount: {_short(actual)}")
        )

    def _resolved(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments with the handles and paths that their numbers stand for now."""
        resolved = dict(arguments)
        slots = sorted(self.local.handles)
        for name in ("slot", "slot2"):
            if name in resolved and slots:
                resolved[name] = slots[resolved[name] % len(slots)]
        for name in ("path", "target"):
            if isinstance(resolved.get(name), int):
                resolved[name] = self._path(resolved[name])
        return resolved

    def _path(self, number: int) -> bytes:
        root = os.fsencode(self.local_path)
        found = []
        if number >= ALL_PATHS:
            opened = [os.readlink(b"/proc/self/fd/%d" % handle.fd) for handle in self.local.handles.values()]
            found = [path for path in opened if path.startswith(root + b"/") and os.path.lexists(path)]
        if not found:
            tree = os.walk(root)
            found = [os.path.join(directory, name) for directory, names, files in tree for name in (*names, *files)]
        relative = sorted(os.path.relpath(path, root) for path in found) or [b"a"]
        return relative[number % len(relative)]

    @staticmethod
    def _outcome(side: Side, operation: Callable[..., object], arguments: dict[str, Any]) -> Outcome:
        os.fchdir(side.root_fd)
        try:
            return "gave", operation(side, **arguments)
        except OSError as error:
            return "failed", errno.errorcode[error.errno or 0]
        except ValueError:
            return "failed", "nothing to map"

    def _readers_to_shield(
        self, operation: Callable[..., object], arguments: dict[str, Any]
    ) -> list[tuple[Handle, Path]]:
        """Local readers of the file whose content this operation begins anew, each with a copy of the old bytes."""
        if not _begins_a_content(operation, arguments):
            return []
        os.fchdir(self.local.root_fd)
        try:
            target = os.stat(arguments["path"])
        except (OSError, ValueError):
            return []
        replaced = self.local.handles.get(arguments.get("into", -1))  # closed by the operation before it opens
        handles = [
            handle
            for handle in self.local.handles.values()
            if handle is not replaced
            and not handle.description.shielded
            and os.path.samestat(os.fstat(handle.fd), target)
        ]
        if not stat.S_ISREG(target.st_mode) or any(handle.description.writes for handle in handles):
            return []
        if not any(handle.description.reads_only for handle in handles):
            return []
        copies: dict[int, Path] = {}
        for handle in handles:  # O_PATH handles too: they stay with the inode
            if id(handle.description) not in copies:
                copies[id(handle.description)] = self._copy_of(arguments["path"])
        return [(handle, copies[id(handle.description)]) for handle in handles]

    def _copy_of(self, path: bytes) -> Path:
        number, name = tempfile.mkstemp(dir=self._scratch)
        with os.fdopen(number, "wb") as copy, open(path, "rb") as source:
            copy.write(source.read())
        return Path(name)

    @staticmethod
    def _settle_shield(shielded: list[tuple[Handle, Path]], *, succeeded: bool) -> None:
        moved: dict[Path, int] = {}
        for handle, copy in shielded if succeeded else ():
            if copy not in moved:
                moved[copy] = os.open(copy, handle.description.flags & ~(os.O_CREAT | os.O_EXCL | os.O_TRUNC))
                if handle.description.reads_only:
                    os.lseek(moved[copy], os.lseek(handle.fd, 0, os.SEEK_CUR), os.SEEK_SET)
                handle.description.shielded = True
            os.dup2(moved[copy], handle.fd, inheritable=False)
        for number in moved.values():
            os.close(number)
        for _, copy in shielded:
            copy.unlink(missing_ok=True)

    def told(self, message: str) -> str:
        """``message``, then the operations so far with what each gave."""
        return "\n  ".join((message, *self._trace))

    def compare_open_files(self) -> None:
        """Every open regular file has the same bytes on both sides, unlinked and shielded ones too."""
        for slot, local in self.local.handles.items():
            flags = local.description.flags
            if flags & os.O_PATH or flags & os.O_ACCMODE == os.O_WRONLY or not stat.S_ISREG(os.fstat(local.fd).st_mode):
                continue
            size = os.fstat(local.fd).st_size
            told = "\n  ".join((f"the open file in slot {slot} differs after", *self._trace))
            assert os.fstat(self.mount.fd(slot)).st_size == size, told
            assert os.pread(self.mount.fd(slot), size + 1, 0) == os.pread(local.fd, size + 1, 0), told

    def close(self) -> None:
        """Close every handle on both sides, and leave their directories."""
        os.chdir("/")
        self.mount.close_all()
        self.local.close_all()
        os.close(self.mount.root_fd)
        os.close(self.local.root_fd)

    def compare_trees(self) -> None:
        """The whole trees are equal: types, modes, owners, link counts, sizes, bytes, links, attributes, set times."""
        try:
            actual, expected = tree_of(self.mount_path), tree_of(self.local_path)
        except AssertionError as error:
            raise AssertionError("\n  ".join((f"{error} after", *self._trace))) from error
        told = [f"{path!r} is only on the {side}" for side, path in _lonely(actual, expected)]
        for path in sorted(actual.keys() & expected.keys()):
            pairs = zip(actual[path], expected[path], strict=True)
            told += [f"{path!r}: mount {_cut(got)}, local {_cut(wanted)}" for got, wanted in pairs if got != wanted]
        assert not told, "\n  ".join(("the trees differ:", *told, "after", *self._trace))


def _lonely(actual: dict[bytes, Any], expected: dict[bytes, Any]) -> list[tuple[str, bytes]]:
    missing = [("local side", path) for path in sorted(expected.keys() - actual.keys())]
    return missing + [("mount", path) for path in sorted(actual.keys() - expected.keys())]


def _begins_a_content(operation: Callable[..., object], arguments: dict[str, Any]) -> bool:
    if operation is ops.op_truncate:
        return arguments["length"] == 0
    return operation is ops.op_open and os.O_TRUNC in arguments["extra"] and os.O_PATH not in arguments["extra"]


def _short(outcome: Outcome) -> str:
    return f"{outcome[0]} {_cut(outcome[1])}"


def _cut(value: object) -> str:
    text = repr(value)
    return text if len(text) < 200 else f"{text[:80]}… ({len(text)} characters)"


def tree_of(root: Path) -> dict[bytes, tuple[object, ...]]:
    """Relative path to everything that must survive about it; names of one inode share a number by first name."""
    records: dict[bytes, tuple[object, ...]] = {}
    first_names: dict[int, bytes] = {}
    pending = [os.fsencode(root)]
    while pending:
        directory = pending.pop()
        for name in sorted(os.listdir(directory)):
            path = os.path.join(directory, name)
            relative = os.path.relpath(path, os.fsencode(root))
            status = os.lstat(path)
            if stat.S_ISDIR(status.st_mode):
                pending.append(path)
            twin = None if stat.S_ISDIR(status.st_mode) else first_names.setdefault(status.st_ino, relative)
            try:
                records[relative] = (*describe(status), twin, _bytes_of(path, status), _attributes_of(path, status))
            except OSError as error:
                raise AssertionError(f"{path!r} cannot be read: {error}") from error
    return records


def _bytes_of(path: bytes, status: os.stat_result) -> bytes | None:
    if stat.S_ISREG(status.st_mode):
        return Path(os.fsdecode(path)).read_bytes()
    return os.readlink(path) if stat.S_ISLNK(status.st_mode) else None


def _attributes_of(path: bytes, status: os.stat_result) -> dict[str, bytes]:
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        return {}
    names = (name for name in os.listxattr(path) if name.startswith(("user.", "trusted.", "system.posix_acl")))
    return {name: os.getxattr(path, name) for name in sorted(names)}


__all__ = ["Pair", "reference_directory", "timestamp", "tree_of"]
