"""The work that is measured: plain system calls in a directory, the same for every target. No target is known here."""

from __future__ import annotations

import os
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MIB = 1 << 20
STAMP_BYTES = 8


class WrongBytesError(Exception):
    """A file read back is not what was written. A number measured on wrong bytes is worth nothing, so the run ends."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How much work one run does.

    Attributes:
        repeat: repetitions of each measurement.
        sequential_bytes: size of the one large file.
        small_count: files of the small-file and metadata workloads.
        listing_count: entries of the directory that is listed.
        memory_file_bytes: size of one file of the memory workload.
        memory_file_count: how many of them.
        flat_levels: entries in the directory at which the cost per operation is taken.
        flat_probe_count: operations of each kind that are timed at a level.
    """

    repeat: int = 3
    sequential_bytes: int = 4096 * MIB
    small_count: int = 10_000
    listing_count: int = 100_000
    memory_file_bytes: int = 1024 * MIB
    memory_file_count: int = 16
    flat_levels: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000)
    flat_probe_count: int = 1_000


QUICK = Scale(
    repeat=1,
    sequential_bytes=256 * MIB,
    small_count=1_000,
    listing_count=5_000,
    memory_file_bytes=128 * MIB,
    memory_file_count=4,
    flat_levels=(1_000, 5_000),
    flat_probe_count=200,
)


def blocks(size: int, seed: int) -> Iterator[memoryview]:
    """A file's bytes as blocks of 1 MiB: incompressible, and each block another one, at no cost worth measuring.

    The same buffer is handed out every time: use a block before asking for the next.
    """
    base = bytearray(Random(seed).randbytes(MIB))
    view = memoryview(base)
    for number, start in enumerate(range(0, size, MIB)):
        base[:STAMP_BYTES] = (seed << 32 | number).to_bytes(STAMP_BYTES, "little")
        yield view[: min(MIB, size - start)]


def write_sequentially(path: Path, size: int, seed: int, *, fsync: bool) -> None:
    """Write a new file in blocks of 1 MiB, then fsync if asked for, and close."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        for block in blocks(size, seed):
            written = os.write(handle, block)
            assert written == len(block), "a regular file takes the whole write"
        if fsync:
            os.fsync(handle)
    finally:
        os.close(handle)


def read_and_compare(path: Path, size: int, seed: int) -> None:
    """Read a file in blocks of 1 MiB and compare each with what was written.

    Raises:
        WrongBytesError: they differ.
    """
    buffer = bytearray(MIB)
    view = memoryview(buffer)
    handle = os.open(path, os.O_RDONLY)
    try:
        for number, block in enumerate(blocks(size, seed)):
            got = 0
            while got < len(block) and (count := os.readv(handle, [view[got : len(block)]])):
                got += count
            if got != len(block) or view[:got] != block:
                raise WrongBytesError(f"block {number} of {path.name}: {got} bytes read, not what was written")
        if os.read(handle, 1):
            raise WrongBytesError(f"{path.name} is longer than what was written")
    finally:
        os.close(handle)


def names(count: int, prefix: str = "f") -> list[str]:
    """That many file names."""
    return [f"{prefix}{number:07d}" for number in range(count)]


def create_files(directory: Path, wanted: list[str], content: bytes, *, fsync: bool) -> None:
    """Create, write (unless empty), fsync if asked for, and close each."""
    top = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for name in wanted:
            handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=top)
            if content:
                os.write(handle, content)
            if fsync:
                os.fsync(handle)
            os.close(handle)
    finally:
        os.close(top)


def stat_files(directory: Path, wanted: list[str]) -> None:
    """Stat each by name."""
    top = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for name in wanted:
            os.stat(name, dir_fd=top)
    finally:
        os.close(top)


def rename_files(directory: Path, wanted: list[str], prefix: str) -> None:
    """Rename each within the directory, to its name with a prefix."""
    top = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for name in wanted:
            os.rename(name, prefix + name, src_dir_fd=top, dst_dir_fd=top)
    finally:
        os.close(top)


def unlink_files(directory: Path, wanted: list[str]) -> None:
    """Remove each."""
    top = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for name in wanted:
            os.unlink(name, dir_fd=top)
    finally:
        os.close(top)


def list_names(directory: Path, expected: int) -> None:
    """Read the directory's names.

    Raises:
        WrongBytesError: some are missing or too many.
    """
    found = len(os.listdir(directory))
    if found != expected:
        raise WrongBytesError(f"{found} names where {expected} are")


def list_with_attributes(directory: Path, expected: int) -> None:
    """Read the names and stat each, as ``ls -l`` does.

    Raises:
        WrongBytesError: some are missing or too many.
    """
    found = 0
    with os.scandir(directory) as entries:
        for entry in entries:
            entry.stat(follow_symlinks=False)
            found += 1
    if found != expected:
        raise WrongBytesError(f"{found} entries where {expected} are")
