"""The filesystem in inode terms: what each call means, with no word of FUSE.

:class:`~ckptfs.vfs.vfs.Vfs` is the one entrance. Errors that are POSIX's answer are
:class:`~ckptfs.errors.PosixError`; an :class:`OSError` is the daemon's own disk failing.
"""

from __future__ import annotations

from ckptfs.vfs.vfs import Attributes, Changes, Vfs, VfsOptions

__all__ = ["Attributes", "Changes", "Vfs", "VfsOptions"]
