"""DeepSpeed ZeRO-2 and ZeRO-3 on two ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import job

if TYPE_CHECKING:
    from pathlib import Path

STEPS = 2


def engine(stage: int) -> Any:
    """An engine of a small model whose optimizer state is sharded over the ranks."""
    import deepspeed
    import torch

    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 512))
    config = {
        "train_batch_size": 4,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return deepspeed.initialize(model=model, optimizer=optimizer, config=config, dist_init_required=False)[0]


def train_step(runner: Any, seed: int) -> None:
    loss = runner(job.seeded(2, 512, seed=seed)).square().mean()
    runner.backward(loss)
    runner.step()


def whole_parameters(runner: Any) -> dict[str, Any]:
    """Every parameter, whole, on every rank."""
    import deepspeed

    with deepspeed.zero.GatheredParameters(list(runner.module.parameters())):
        return {name: value.detach().clone() for name, value in runner.module.named_parameters()}


def save_rank(rank: int, directory: Path, side: Path, stage: int) -> None:
    import deepspeed
    import torch

    deepspeed.init_distributed("gloo", verbose=False)
    runner = engine(stage)
    for step in range(STEPS):
        train_step(runner, 10 * step + rank)
        runner.save_checkpoint(str(directory), tag=f"step{step}", client_state={"step": step})
    parameters = whole_parameters(runner)
    if rank == 0:
        torch.save(parameters, side / "parameters.pt")
    # What one more step gives shows that the optimizer's state is right too.
    train_step(runner, 100 + rank)
    parameters = whole_parameters(runner)
    if rank == 0:
        torch.save(parameters, side / "next.pt")


def load_rank(rank: int, directory: Path, side: Path, stage: int) -> None:
    import deepspeed
    import torch

    deepspeed.init_distributed("gloo", verbose=False)
    runner = engine(stage)
    path, client_state = runner.load_checkpoint(str(directory))
    assert path is not None, "no checkpoint was found"
    assert client_state["step"] == STEPS - 1
    job.check_equal(whole_parameters(runner), torch.load(side / "parameters.pt"))
    train_step(runner, 100 + rank)
    job.check_equal(whole_parameters(runner), torch.load(side / "next.pt"))


def save(directory: Path, side: Path, variant: str) -> None:
    job.on_ranks(2, save_rank, directory, side, int(variant))
    assert (directory / "latest").read_text(encoding="utf-8") == f"step{STEPS - 1}"


def load(directory: Path, side: Path, variant: str) -> None:
    job.on_ranks(2, load_rank, directory, side, int(variant))


if __name__ == "__main__":
    job.main(save, load)
