"""The tree: what each POSIX call does to inodes and names.

Plain functions: no call waits, so none is ever seen half done.
Permissions are the kernel's business (``default_permissions``); what is checked here is the shape of the tree.
"""

from __future__ import annotations

import errno
import stat
from typing import TYPE_CHECKING

from ckptfs.errors import PosixError
from ckptfs.namespace.paths import NAME_BYTES_MAX
from ckptfs.namespace.rows import Dentry, Inode, Names, TreeMove, Xattrs
from ckptfs.namespace.tree_view import TreeView
from ckptfs.types import NO_CONTENT, RESERVED_PREFIX, ROOT_INO, Ino, Key

if TYPE_CHECKING:
    from ckptfs.namespace.bucket import Bucket
    from ckptfs.namespace.state import State

RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2

LINK_COUNT_MAX = 65_000
"""As ext4. The names of one inode are one row, so there must be a bound."""

_NOBODY = Ino(0)

RESERVED_NAME = RESERVED_PREFIX.rstrip("/").encode()
"""No file can be made under this name in the root: its object would lie among ckptfs's own."""

LISTED_NOT = 0
LISTED = 1
LISTED_BORN_THERE = 2
"""Values of ``Inode.listed`` of a directory; see the schema."""


class Tree(TreeView):
    """Inodes and names, to be read and changed.

    Args:
        state: the tables.
        bucket: told which keys a mutation concerns.
    """

    def __init__(self, state: State, bucket: Bucket) -> None:
        super().__init__(state)
        self._bucket = bucket

    # --- making

    def create(
        self,
        parent: Ino,
        name: bytes,
        mode: int,
        uid: int,
        gid: int,
        *,
        rdev: int = 0,
        target: bytes | None = None,
        xattrs: dict[bytes, bytes] | None = None,
    ) -> Inode:
        """Make an inode of the type in ``mode`` under a new name.

        A setgid directory gives its group (and, to directories, the bit).
        """
        directory = self._directory_for(parent, name)
        if self._state.dentries.get((parent, name)) is not None:
            raise PosixError(errno.EEXIST)
        if directory.mode & stat.S_ISGID:
            gid = directory.gid
            if stat.S_ISDIR(mode):
                mode |= stat.S_ISGID
        inode = self._new_inode(parent, name, mode, uid, gid, rdev=rdev, target=target)
        if xattrs:
            self._state.xattrs.put(inode.ino, Xattrs(inode.ino, xattrs))
        self._state.add_dentry(parent, name, inode.ino)
        if inode.is_dir:
            directory.nlink += 1
        self._stamp(directory, inode.ctime_ns)
        self._state.record(
            "create", parent=parent, name=name, ino=inode.ino, mode=mode, uid=uid, gid=gid, rdev=rdev, target=target
        )
        return inode

    def _new_inode(
        self, parent: Ino, name: bytes, mode: int, uid: int, gid: int, *, rdev: int = 0, target: bytes | None = None
    ) -> Inode:
        now = self._state.env.wall_ns()
        is_dir = stat.S_ISDIR(mode)
        inode = Inode(
            ino=self._state.allocate_ino(),
            mode=mode,
            uid=uid,
            gid=gid,
            nlink=2 if is_dir else 1,
            rdev=rdev,
            size=len(target) if target is not None else 0,
            allocated=0,
            atime_ns=now,
            mtime_ns=now,
            ctime_ns=now,
            birth_ns=now,
            content=NO_CONTENT,
            parent=parent,
            name=name,
            target=target,
            listed=1,
            hidden=0,
        )
        self._state.inodes.put(inode.ino, inode)
        return inode

    def make_root(self, mode: int, uid: int, gid: int) -> None:
        """Make the root directory if there is none. Its bucket is not listed yet."""
        if self._state.inodes.get(ROOT_INO) is not None:
            return
        now = self._state.env.wall_ns()
        root = Inode(
            ROOT_INO,
            stat.S_IFDIR | mode,
            uid,
            gid,
            2,
            0,
            0,
            0,
            now,
            now,
            now,
            now,
            NO_CONTENT,
            ROOT_INO,
            b"",
            None,
            0,
            0,
        )
        self._state.inodes.put(ROOT_INO, root)
        self._state.record("make_root", mode=mode, uid=uid, gid=gid)

    def link(self, ino: Ino, parent: Ino, name: bytes) -> Inode:
        """Give a file another name."""
        directory = self._directory_for(parent, name)
        inode = self.inode(ino)
        if inode.is_dir:
            raise PosixError(errno.EPERM)
        if self._state.dentries.get((parent, name)) is not None:
            raise PosixError(errno.EEXIST)
        if inode.nlink >= LINK_COUNT_MAX:
            raise PosixError(errno.EMLINK)
        if inode.nlink == 0:
            raise PosixError(errno.ENOENT)
        self._add_name(inode, parent, name)
        inode.nlink += 1
        inode.ctime_ns = self._state.env.wall_ns()
        self._state.inodes.mark(ino)
        self._state.add_dentry(parent, name, ino)
        self._stamp(directory, inode.ctime_ns)
        lsn = self._state.record("link", ino=ino, parent=parent, name=name)
        key = self.key_of(parent, name)
        if key is not None and inode.is_file:
            self._bucket.oblige(key, lsn)
        return inode

    # --- removing

    def unlink(self, parent: Ino, name: bytes) -> Inode:
        """Remove a name of something that is not a directory; the inode lives on while it has names or handles."""
        dentry = self._must(parent, name)
        inode = self.inode(dentry.ino)
        if inode.is_dir:
            raise PosixError(errno.EISDIR)
        lsn = self._state.record("unlink", parent=parent, name=name)
        self._drop(dentry, inode)
        self._stamp(self.inode(parent), inode.ctime_ns)
        self._oblige(inode, parent, name, lsn)
        return inode

    def rmdir(self, parent: Ino, name: bytes) -> Inode:
        """Remove an empty directory. One with objects that no file can stand for is not empty."""
        dentry = self._must(parent, name)
        inode = self.inode(dentry.ino)
        if not inode.is_dir:
            raise PosixError(errno.ENOTDIR)
        if inode.hidden or not self.is_empty(inode.ino):
            raise PosixError(errno.ENOTEMPTY)
        lsn = self._state.record("rmdir", parent=parent, name=name)
        self._oblige(inode, parent, name, lsn)
        self._drop(dentry, inode)
        self._stamp(self.inode(parent), inode.ctime_ns)
        return inode

    def _drop(self, dentry: Dentry, inode: Inode) -> None:
        """Take one name from an inode; the caller records it and stamps the directory."""
        self._state.remove_dentry(dentry)
        self._unname(inode, dentry.parent, dentry.name)

    def _unname(self, inode: Inode, parent: Ino, name: bytes) -> None:
        """As :meth:`_drop`, for a name that goes on to lead elsewhere."""
        inode.ctime_ns = self._state.env.wall_ns()
        if inode.is_dir:
            inode.nlink = 0
            self.inode(parent).nlink -= 1
            self._state.inodes.mark(parent)
        else:
            inode.nlink -= 1
            self._remove_name(inode, parent, name)
        if inode.nlink == 0:
            inode.parent = _NOBODY
        self._state.inodes.mark(inode.ino)

    def reap(self, ino: Ino) -> None:
        """Remove an inode without names; the caller knows that nobody holds it."""
        inode = self.inode(ino)
        assert inode.nlink == 0, f"inode {ino} has names"
        self._state.inodes.remove(ino)
        self._state.xattrs.remove(ino)
        self._state.names.remove(ino)
        self._state.record("reap", ino=ino)

    # --- moving

    def rename(self, parent: Ino, name: bytes, new_parent: Ino, new_name: bytes, flags: int = 0) -> Inode | None:
        """Rename, atomically; gives the inode that lost the name ``new_name``, if one did.

        Two names of one inode: nothing happens (POSIX). Directories move in constant time, whatever is below them.
        """
        source = self._must(parent, name)
        target = self._state.dentries.get((new_parent, new_name))
        self._directory_for(new_parent, new_name)
        inode = self.inode(source.ino)
        if inode.is_dir and self._is_below(new_parent, inode.ino):
            raise PosixError(errno.EINVAL)
        if flags & RENAME_EXCHANGE:
            self._exchange(source, inode, target)
            return None
        replaced = None
        if target is not None:
            if flags & RENAME_NOREPLACE:
                raise PosixError(errno.EEXIST)
            if target.ino == source.ino:
                return None
            replaced = self.inode(target.ino)
            self._may_replace(inode, replaced)
        self._check_link_count(inode, parent, new_parent)
        lsn = self._state.record(
            "rename", parent=parent, name=name, new_parent=new_parent, new_name=new_name, flags=flags
        )
        old_key = self._source_of_move(inode, parent, name)
        if replaced is not None and target is not None:
            self._oblige(replaced, new_parent, new_name, lsn)
            self._unname(replaced, new_parent, new_name)
        self._state.add_dentry(new_parent, new_name, inode.ino)
        self._state.remove_dentry(source)
        self._moved(inode, parent, name, new_parent, new_name)
        self._stamp(self.inode(parent), inode.ctime_ns)
        self._stamp(self.inode(new_parent), inode.ctime_ns)
        self._oblige_move(inode, old_key, self._source_of_move(inode, new_parent, new_name), lsn)
        return replaced

    def _exchange(self, source: Dentry, inode: Inode, target: Dentry | None) -> None:
        if target is None:
            raise PosixError(errno.ENOENT)
        if target.ino == source.ino:
            return
        other = self.inode(target.ino)
        if other.is_dir and self._is_below(source.parent, other.ino):
            raise PosixError(errno.EINVAL)
        lsn = self._state.record(
            "rename",
            parent=source.parent,
            name=source.name,
            new_parent=target.parent,
            new_name=target.name,
            flags=RENAME_EXCHANGE,
        )
        here = self._source_of_move(inode, source.parent, source.name)
        there = self._source_of_move(other, target.parent, target.name)
        source.ino, target.ino = target.ino, source.ino
        self._state.dentries.mark((source.parent, source.name))
        self._state.dentries.mark((target.parent, target.name))
        self._moved(inode, source.parent, source.name, target.parent, target.name)
        self._moved(other, target.parent, target.name, source.parent, source.name)
        self._stamp(self.inode(source.parent), inode.ctime_ns)
        self._stamp(self.inode(target.parent), inode.ctime_ns)
        self._oblige_move(inode, here, self._source_of_move(inode, target.parent, target.name), lsn)
        self._oblige_move(other, there, self._source_of_move(other, source.parent, source.name), lsn)

    def _moved(self, inode: Inode, parent: Ino, name: bytes, new_parent: Ino, new_name: bytes) -> None:
        inode.ctime_ns = self._state.env.wall_ns()
        if inode.is_dir:
            if parent != new_parent:
                self.inode(parent).nlink -= 1
                self.inode(new_parent).nlink += 1
            inode.parent, inode.name = new_parent, new_name
        else:
            self._add_name(inode, new_parent, new_name)
            self._remove_name(inode, parent, name)
        self._state.inodes.mark(inode.ino)

    def _source_of_move(self, inode: Inode, parent: Ino, name: bytes) -> Key | None:
        return self.key_of(parent, name) if inode.is_dir or inode.is_file else None

    def _oblige_move(self, inode: Inode, old: Key | None, new: Key | None, lsn: int) -> None:
        if old is None or new is None:
            return
        if inode.is_dir:
            lsn = self._state.record("tree_move", old=old, new=new)
            self._bucket.begin_tree_move(TreeMove(lsn, f"{old}/", f"{new}/"))
        else:
            self._bucket.oblige(old, lsn)
            self._bucket.oblige(new, lsn)

    def supersede(self, ino: Ino) -> Inode:
        """Give all names of a file to a new inode with the same attributes and the same committed content.

        The content is the new one's from now on. The old one has no names any more; who has it open goes on with what
        it had.
        """
        old = self.inode(ino)
        names = self.names_of(old)
        assert names, "an inode without names is not superseded"
        new = self._new_inode(old.parent, old.name, old.mode, old.uid, old.gid)
        new.nlink, new.birth_ns, new.content = old.nlink, old.birth_ns, old.content
        new.size, new.allocated = old.size, old.allocated
        new.atime_ns, new.mtime_ns = old.atime_ns, old.mtime_ns
        content = self._state.contents.get(old.content)
        if content is not None:
            content.ino = new.ino
            self._state.contents.mark(content.id)
        xattrs = self._state.xattrs.get(ino)
        if xattrs is not None:
            self._state.xattrs.put(new.ino, Xattrs(new.ino, dict(xattrs.attributes)))
        if self._state.names.get(ino) is not None:
            self._state.names.put(new.ino, Names(new.ino, set(names)))
        for parent, name in names:
            self._state.add_dentry(parent, name, new.ino)
        old.nlink, old.parent = 0, _NOBODY
        self._state.inodes.mark(ino)
        self._state.record("supersede", ino=ino, new=new.ino)
        return new

    # --- what the bucket brings

    def adopt(self, parent: Ino, name: bytes, mode: int, uid: int, gid: int, mtime_ns: int) -> Inode:
        """Make an inode for what the bucket was found to hold under a new name. A directory is not listed yet."""
        assert self._state.dentries.get((parent, name)) is None, "the name is taken"
        inode = self._new_inode(parent, name, mode, uid, gid)
        inode.atime_ns = inode.mtime_ns = inode.ctime_ns = inode.birth_ns = mtime_ns
        if inode.is_dir:
            inode.listed = LISTED_NOT
            directory = self.inode(parent)
            directory.nlink += 1
            self._state.inodes.mark(parent)
        self._state.add_dentry(parent, name, inode.ino)
        self._state.record("adopt", parent=parent, name=name, ino=inode.ino, mode=mode)
        return inode

    def forget_name(self, parent: Ino, name: bytes) -> Inode:
        """Remove a name because the bucket no longer holds it.

        As unlink or rmdir, but nothing is to be done in the bucket.
        """
        dentry = self._must(parent, name)
        inode = self.inode(dentry.ino)
        self._drop(dentry, inode)
        self._state.record("forget_name", parent=parent, name=name)
        return inode

    # --- helpers

    def _directory_for(self, parent: Ino, name: bytes) -> Inode:
        """The directory in which a name is about to be made."""
        if len(name) > NAME_BYTES_MAX:
            raise PosixError(errno.ENAMETOOLONG)
        if parent == ROOT_INO and name == RESERVED_NAME:
            raise PosixError(errno.EPERM)
        self._state.check()
        directory = self.inode(parent)
        if directory.nlink == 0:
            raise PosixError(errno.ENOENT)
        return directory

    def _check_link_count(self, inode: Inode, parent: Ino, new_parent: Ino) -> None:
        if inode.is_dir and parent != new_parent and self.inode(new_parent).nlink >= LINK_COUNT_MAX:
            raise PosixError(errno.EMLINK)

    def _may_replace(self, inode: Inode, replaced: Inode) -> None:
        if replaced.is_dir:
            if not inode.is_dir:
                raise PosixError(errno.EISDIR)
            if replaced.hidden or not self.is_empty(replaced.ino):
                raise PosixError(errno.ENOTEMPTY)
        elif inode.is_dir:
            raise PosixError(errno.ENOTDIR)

    def _stamp(self, directory: Inode, now_ns: int) -> None:
        directory.mtime_ns = directory.ctime_ns = now_ns
        if directory.listed == LISTED_BORN_THERE:
            directory.listed = LISTED
        self._state.inodes.mark(directory.ino)

    def _add_name(self, inode: Inode, parent: Ino, name: bytes) -> None:
        """Add a name to what the inode knows of its names (not the dentry)."""
        names = self._state.names.get(inode.ino)
        if names is None:
            names = Names(inode.ino, {(inode.parent, inode.name)})
        names.names.add((parent, name))
        self._state.names.put(inode.ino, names)

    def _remove_name(self, inode: Inode, parent: Ino, name: bytes) -> None:
        names = self._state.names.get(inode.ino)
        if names is None:
            return
        names.names.discard((parent, name))
        if names.names and (inode.parent, inode.name) not in names.names:
            inode.parent, inode.name = min(names.names)
        if len(names.names) <= 1:
            self._state.names.remove(inode.ino)
        else:
            self._state.names.put(inode.ino, names)

    def _oblige(self, inode: Inode, parent: Ino, name: bytes, lsn: int) -> None:
        """Say that the object of a name that goes away may have to go too."""
        key = self.key_of(parent, name)
        if key is None:
            return
        self._bucket.oblige_known(Key(f"{key}/") if inode.is_dir else key, lsn)
