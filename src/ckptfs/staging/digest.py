"""Digests of blocks: XXH3-128, from the file and never from the writes (a driver may see none)."""

from __future__ import annotations

import os

import xxhash

BLOCK_BYTES = 1 << 20
"""A block: the unit of digest and of cache. The last block of a content is shorter."""

DIGEST_BYTES = 16
"""Length of the digest of one block (XXH3-128, canonical big-endian form)."""


def digest_bytes(data: bytes | bytearray | memoryview) -> bytes:
    """Digests of the blocks of ``data``, one behind the other."""
    view = memoryview(data)
    return b"".join(
        xxhash.xxh3_128_digest(view[start : start + BLOCK_BYTES]) for start in range(0, len(view), BLOCK_BYTES)
    )


def digest_blocks(fd: int, size: int) -> bytes:
    """Digests of the blocks of a file of ``size`` bytes, one behind the other. Blocks: run it on a thread.

    Raises:
        OSError: the file cannot be read, or is shorter than ``size`` (EIO).
    """
    buffer = bytearray(min(BLOCK_BYTES, size))
    view = memoryview(buffer)
    digests = bytearray()
    for start in range(0, size, BLOCK_BYTES):
        block = view[: min(BLOCK_BYTES, size - start)]
        have = 0
        while have < len(block):
            step = os.preadv(fd, [block[have:]], start + have)
            if step == 0:
                raise OSError(5, f"the staging file ends at {start + have}, not at {size}")
            have += step
        digests += xxhash.xxh3_128_digest(block)
    return bytes(digests)
