"""The system calls of DeepSpeed's FastPersist writer: O_DIRECT, out of order from several threads, a tail appended.

The file is not truncated when it is opened, the aligned part ends on 512 bytes, and the rest (less than 512) comes
through a second, buffered handle opened with O_APPEND.
"""

from __future__ import annotations

import mmap
import os
import random
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import job

if TYPE_CHECKING:
    from pathlib import Path

PIECE_BYTES = 1 << 20
SECTOR_BYTES = 512
SIZES = (24 * PIECE_BYTES + 7 * SECTOR_BYTES + 123, 3 * PIECE_BYTES, 5 * SECTOR_BYTES, 511)


def payload(size: int) -> bytes:
    """Bytes that every run makes equal."""
    return random.Random(size).randbytes(size)


def write_piece(handle: int, data: bytes, offset: int) -> None:
    """One direct write; the memory must be aligned, and an anonymous map is."""
    with mmap.mmap(-1, len(data)) as memory:
        memory.write(data)
        written = os.pwrite(handle, memory, offset)
    assert written == len(data), f"{written} of {len(data)} bytes at {offset}"


def write(path: Path, data: bytes) -> None:
    aligned = len(data) // SECTOR_BYTES * SECTOR_BYTES
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o644)
    try:
        offsets = list(range(0, aligned, PIECE_BYTES))
        random.Random(1).shuffle(offsets)
        with ThreadPoolExecutor(4) as threads:
            pieces = ((handle, data[offset : min(offset + PIECE_BYTES, aligned)], offset) for offset in offsets)
            list(threads.map(lambda piece: write_piece(*piece), pieces))
    finally:
        os.close(handle)
    if aligned < len(data):
        handle = os.open(path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(handle, data[aligned:])
        finally:
            os.close(handle)


def save(directory: Path, _side: Path, _variant: str) -> None:
    for size in SIZES:
        write(directory / f"{size}.pt", payload(size))
    (directory / "latest").write_text("step1", encoding="utf-8")


def load(directory: Path, _side: Path, _variant: str) -> None:
    for size in SIZES:
        assert (directory / f"{size}.pt").read_bytes() == payload(size), f"the file of {size} bytes differs"


if __name__ == "__main__":
    job.main(save, load)
