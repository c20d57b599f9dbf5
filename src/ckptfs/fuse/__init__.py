"""The kernel side.

FUSE requests to :mod:`ckptfs.vfs` and answers back. ``pyfuse3`` is imported here and nowhere else.
"""
