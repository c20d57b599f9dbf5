"""The disk port: what ckptfs asks of the filesystem under its cache directory. Everything that may wait for a disk goes through it."""
