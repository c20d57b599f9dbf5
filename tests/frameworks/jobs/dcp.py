"""PyTorch Distributed Checkpoint: saved on two ranks, loaded on two and by one process alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import job

if TYPE_CHECKING:
    from pathlib import Path

STEPS = (1, 2)
ROWS = 2048


def state(step: int, *, empty: bool = False) -> dict[str, Any]:
    """The training state of a step on this rank: two sharded tensors of 8 MiB and 12 MiB, a small one, plain values."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))

    def tensor(*shape: int, seed: int, placement: Any) -> Any:
        return distribute_tensor(torch.zeros(*shape) if empty else job.seeded(*shape, seed=seed), mesh, [placement])

    return {
        "weight": tensor(ROWS, 1024, seed=step, placement=Shard(0)),
        "moment": tensor(ROWS, 1536, seed=10 + step, placement=Shard(1)),
        "bias": tensor(1024, seed=20 + step, placement=Replicate()),
    }


def writer(path: Path, variant: str) -> Any:
    """The storage writer of a variant."""
    from torch.distributed.checkpoint import FileSystemWriter, HuggingFaceStorageWriter

    if variant.startswith("huggingface"):
        shared = variant == "huggingface-consolidated"
        return HuggingFaceStorageWriter(
            path, save_distributed=shared, enable_consolidation=shared, thread_count_consolidation=2 if shared else 1
        )
    return FileSystemWriter(path, thread_count=4 if variant == "threads" else 1)


def save_rank(_rank: int, directory: Path, variant: str) -> None:
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    background = dist.new_group(backend="gloo")
    pending = None
    for step in STEPS:
        path = directory / f"step-{step}"
        if variant == "async":
            if pending is not None:
                pending.result()
            pending = dcp.async_save(state(step), storage_writer=writer(path, variant), process_group=background)
        else:
            dcp.save(state(step), storage_writer=writer(path, variant))
    if pending is not None:
        pending.result()
    if not variant.startswith("huggingface"):
        # Over what is there: the shards are truncated in place while the old .metadata stands.
        dcp.save(state(STEPS[-1] + 1), storage_writer=writer(directory / f"step-{STEPS[-1]}", variant))


def load_rank(rank: int, directory: Path, variant: str) -> None:
    import torch
    import torch.distributed.checkpoint as dcp

    for step in STEPS:
        path = directory / f"step-{step}"
        huggingface = variant.startswith("huggingface")
        seed = step if huggingface or step != STEPS[-1] else STEPS[-1] + 1
        found = state(step, empty=True)
        reader = dcp.HuggingFaceStorageReader(path) if huggingface else dcp.FileSystemReader(path)
        dcp.load(found, storage_reader=reader)
        wanted = {name: tensor.full_tensor() for name, tensor in state(seed).items()}
        job.check_equal({name: tensor.full_tensor() for name, tensor in found.items()}, wanted, f"rank {rank} {path}")
        if rank == 0:
            alone = {name: torch.zeros_like(tensor) for name, tensor in wanted.items()}
            dcp.load(alone, storage_reader=type(reader)(path), no_dist=True)
            job.check_equal(alone, wanted, f"alone {path}")


def ranks_of_save(variant: str) -> int:
    # Without save_distributed every rank writes the file of the same name: that mode is for one rank.
    return 1 if variant == "huggingface" else 2


def save(directory: Path, _side: Path, variant: str) -> None:
    job.on_ranks(ranks_of_save(variant), save_rank, directory, variant)


def load(directory: Path, _side: Path, variant: str) -> None:
    job.on_ranks(2, load_rank, directory, variant)


if __name__ == "__main__":
    job.main(save, load)
