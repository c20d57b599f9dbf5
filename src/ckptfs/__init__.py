"""ckptfs: a POSIX filesystem over object storage, made for training checkpoints."""

__version__ = "0.1.0"
