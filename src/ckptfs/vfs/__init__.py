"""The filesystem in inode terms: what each call means, with no word of FUSE.

:class:`~ckptfs.vfs.vfs.Vfs` is the one entrance. Errors that are POSIX's answer are
:class:`~ckptfs.errors.PosixError`; an :class:`OSError` is the daemon's own disk failing.
"""

from __future__ import annotations

from ckptfs.vfs.core import Attributes, VfsOptions
from ckptfs.vfs.io import Changes
from ckptfs.vfs.vfs import Vfs

__all__ = ["Attributes", "Changes", "Vfs", "VfsOptions"]
