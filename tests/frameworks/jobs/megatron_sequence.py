"""The system calls of a Megatron-core torch_dist save: forked writers that inherit open files, and a tracker in place.

Two writers are forked from each rank while the rank has a file of its own half written: when a writer ends, the kernel
closes its copy of that handle (a FLUSH, though the file is still being written).
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import job

if TYPE_CHECKING:
    from pathlib import Path

ITERATIONS = tuple(range(10, 130, 10))
SHARD_BYTES = 1 << 20
WRITERS = 2


def payload(*words: object, size: int) -> bytes:
    """Bytes that every run makes equal."""
    return random.Random(repr(words)).randbytes(size)


def fork_writer(path: Path, data: bytes) -> int:
    """Write and sync ``path`` in a process forked from this one; its process id."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            with path.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            code = 0
        finally:
            # Closes what it inherited, without running this program's clean-up a second time.
            os._exit(code)
    return pid


def save_iteration(directory: Path, iteration: int) -> None:
    target = directory / f"iter_{iteration:07d}"
    target.mkdir()
    (target / "common.pt").write_bytes(payload(iteration, "common", size=9000))
    with (target / "rank.log").open("wb", buffering=0) as half_written:
        half_written.write(b"begin ")
        shards = {f"__0_{index}.distcp": payload(iteration, index, size=SHARD_BYTES) for index in range(WRITERS)}
        for pid in [fork_writer(target / name, data) for name, data in shards.items()]:
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, "a writer failed"
        half_written.write(b"end")
    temporary = target / ".metadata.tmp"
    with temporary.open("wb") as file:
        # As DCP of torch 2.13 does: synced before the last bytes left Python's buffer.
        file.write(payload(iteration, "metadata", size=5000))
        os.fsync(file.fileno())
    (target / ".metadata").unlink(missing_ok=True)
    temporary.rename(target / ".metadata")
    (target / "metadata.json").write_text('{"sharded_backend": "torch_dist"}', encoding="utf-8")
    (directory / "latest_checkpointed_iteration.txt").write_text(str(iteration), encoding="utf-8")


def save(directory: Path, _side: Path, _variant: str) -> None:
    for iteration in ITERATIONS:
        save_iteration(directory, iteration)


def load(directory: Path, _side: Path, _variant: str) -> None:
    assert (directory / "latest_checkpointed_iteration.txt").read_text(encoding="utf-8") == str(ITERATIONS[-1])
    for iteration in ITERATIONS:
        target = directory / f"iter_{iteration:07d}"
        assert (target / "common.pt").read_bytes() == payload(iteration, "common", size=9000)
        assert (target / "rank.log").read_bytes() == b"begin end"
        assert (target / ".metadata").read_bytes() == payload(iteration, "metadata", size=5000)
        for index in range(WRITERS):
            assert (target / f"__0_{index}.distcp").read_bytes() == payload(iteration, index, size=SHARD_BYTES)


if __name__ == "__main__":
    job.main(save, load)
