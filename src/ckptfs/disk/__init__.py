"""The disk port.

What ckptfs asks of the filesystem under its cache directory. Everything that may wait for a disk goes through it.
"""
