"""Extended attributes: the user's own, ACLs, and those that ckptfs answers itself (``user.ckptfs.*``)."""

from __future__ import annotations

import errno
import stat
from typing import TYPE_CHECKING

from ckptfs.errors import PosixError
from ckptfs.namespace.rows import Xattrs
from ckptfs.types import ContentState
from ckptfs.vfs import acl

if TYPE_CHECKING:
    from ckptfs.namespace import Namespace
    from ckptfs.namespace.rows import Inode
    from ckptfs.types import Ino
    from ckptfs.vfs.openfile import OpenFiles

NAME_BYTES_MAX = 255
VALUE_BYTES_MAX = 64 * 1024
TOTAL_BYTES_MAX = 256 * 1024
"""All attributes of one inode are one row."""

_OWN = b"user.ckptfs."


class XattrCalls:
    """The xattr calls.

    Args:
        namespace: where attributes are kept.
        files: to tell the state of a file that is open.
    """

    def __init__(self, namespace: Namespace, files: OpenFiles) -> None:
        self._namespace = namespace
        self._files = files

    def _own(self, inode: Inode) -> dict[bytes, bytes]:
        """Attributes that ckptfs answers itself."""
        if not inode.is_file:
            return {}
        file = self._files.get(inode.ino)
        content = self._namespace.contents.get(inode.content if file is None else file.content)
        state = ContentState.OPEN if content is None else content.state
        own = {_OWN + b"state": state.value.encode()}
        if content is not None and content.digests:
            own[_OWN + b"digest"] = content.digests.hex().encode()[:VALUE_BYTES_MAX]
        error = (content.error if content is not None else "") or (str(file.error) if file and file.error else "")
        if error:
            own[_OWN + b"error"] = error.encode()
        return own

    def get(self, ino: Ino, name: bytes) -> bytes:
        """Value of an attribute.

        Raises:
            PosixError: ENODATA.
        """
        inode = self._namespace.tree.inode(ino)
        if name.startswith(_OWN):
            value = self._own(inode).get(name)
        else:
            row = self._namespace.state.xattrs.get(ino)
            value = None if row is None else row.attributes.get(name)
        if value is None:
            raise PosixError(errno.ENODATA)
        return value

    def list(self, ino: Ino) -> list[bytes]:
        """Names of the attributes that are stored (not those that ckptfs answers.

        Copying tools would try to set them).
        """
        self._namespace.tree.inode(ino)
        row = self._namespace.state.xattrs.get(ino)
        return [] if row is None else sorted(row.attributes)

    def set(self, ino: Ino, name: bytes, value: bytes) -> None:
        """Set an attribute; an access ACL sets the mode too, and is not kept when the mode says all of it."""
        inode = self._namespace.tree.inode(ino)
        self._check(name, value)
        if name == acl.ACCESS:
            entries = acl.decode(value)
            self._set_mode(inode, acl.mode_of(entries, inode.mode))
            if acl.is_minimal(entries):
                self._remove(inode, name)
                return
        elif name == acl.DEFAULT:
            if not inode.is_dir:
                raise PosixError(errno.EACCES)
            if not acl.decode(value):
                self._remove(inode, name)
                return
        row = self._namespace.state.xattrs.get(ino) or Xattrs(ino, {})
        total = sum(len(k) + len(v) for k, v in row.attributes.items() if k != name) + len(name) + len(value)
        if total > TOTAL_BYTES_MAX:
            raise PosixError(errno.ENOSPC)
        row.attributes[name] = value
        self._namespace.state.xattrs.put(ino, row)
        self._changed(inode)
        self._namespace.state.record("setxattr", ino=ino, name=name, value=value.hex())

    def _check(self, name: bytes, value: bytes) -> None:
        self._namespace.state.check()
        if name.startswith(_OWN):
            raise PosixError(errno.EPERM)
        if len(name) > NAME_BYTES_MAX:
            raise PosixError(errno.ERANGE)
        if name.endswith(b".") and name.count(b".") == 1:
            raise PosixError(errno.EINVAL)
        if len(value) > VALUE_BYTES_MAX:
            raise PosixError(errno.E2BIG)

    def remove(self, ino: Ino, name: bytes) -> None:
        """Remove an attribute.

        Raises:
            PosixError: ENODATA.
        """
        inode = self._namespace.tree.inode(ino)
        self._check(name, b"")
        row = self._namespace.state.xattrs.get(ino)
        if row is None or name not in row.attributes:
            if name in {acl.ACCESS, acl.DEFAULT}:
                return
            raise PosixError(errno.ENODATA)
        self._remove(inode, name)

    def _remove(self, inode: Inode, name: bytes) -> None:
        row = self._namespace.state.xattrs.get(inode.ino)
        if row is None or row.attributes.pop(name, None) is None:
            return
        if row.attributes:
            self._namespace.state.xattrs.put(inode.ino, row)
        else:
            self._namespace.state.xattrs.remove(inode.ino)
        self._changed(inode)
        self._namespace.state.record("removexattr", ino=inode.ino, name=name)

    def _changed(self, inode: Inode) -> None:
        inode.ctime_ns = self._namespace.state.env.wall_ns()
        self._namespace.state.inodes.mark(inode.ino)

    def _set_mode(self, inode: Inode, mode: int) -> None:
        if mode != inode.mode:
            inode.mode = mode
            self._changed(inode)
            self._namespace.state.record("setattr", ino=inode.ino, mode=mode)

    def chmod_acl(self, inode: Inode) -> None:
        """Let the access ACL follow the mode after a chmod."""
        row = self._namespace.state.xattrs.get(inode.ino)
        if row is None or acl.ACCESS not in row.attributes:
            return
        entries = acl.with_mode(acl.decode(row.attributes[acl.ACCESS]), inode.mode)
        row.attributes[acl.ACCESS] = acl.encode(entries)
        self._namespace.state.xattrs.put(inode.ino, row)

    def inherit(self, parent: Ino, mode: int) -> tuple[int, dict[bytes, bytes]]:
        """Mode and ACLs of something that is made with ``mode`` (umask already applied by the kernel) in ``parent``."""
        row = self._namespace.state.xattrs.get(parent)
        value = None if row is None else row.attributes.get(acl.DEFAULT)
        if value is None or stat.S_ISLNK(mode):
            return mode, {}
        entries, mode = acl.inherit(acl.decode(value), mode)
        attributes = {} if acl.is_minimal(entries) else {acl.ACCESS: acl.encode(entries)}
        if stat.S_ISDIR(mode):
            attributes[acl.DEFAULT] = value
        return mode, attributes
