"""Hugging Face Trainer: saves with rotation, resumes from its newest checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import job

if TYPE_CHECKING:
    from pathlib import Path

LIMIT = 2
EVERY = 2
STEPS = 8


def trainer(directory: Path, steps: int) -> Any:
    """A trainer of a model of two small layers on made-up tokens."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

    set_seed(1)
    config = LlamaConfig(
        vocab_size=512, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=64,
    )  # fmt: skip
    rows = torch.randint(512, (64, 32), generator=torch.Generator().manual_seed(2))
    arguments = TrainingArguments(
        output_dir=str(directory), max_steps=steps, save_steps=EVERY, save_total_limit=LIMIT, logging_steps=1,
        per_device_train_batch_size=4, report_to=[], use_cpu=True, disable_tqdm=True, seed=1,
    )  # fmt: skip
    return Trainer(
        model=LlamaForCausalLM(config),
        args=arguments,
        train_dataset=[{"input_ids": row, "labels": row} for row in rows],
    )


def save(directory: Path, side: Path, _variant: str) -> None:
    import torch

    run = trainer(directory, STEPS)
    run.train()
    left = sorted(path.name for path in directory.glob("checkpoint-*"))
    assert left == [f"checkpoint-{STEPS - EVERY}", f"checkpoint-{STEPS}"], f"rotation left {left}"
    torch.save(run.model.state_dict(), side / "model.pt")
    torch.save(run.optimizer.state_dict(), side / "optimizer.pt")


def load(directory: Path, side: Path, _variant: str) -> None:
    import torch
    from transformers import LlamaForCausalLM

    newest = directory / f"checkpoint-{STEPS}"
    model = LlamaForCausalLM.from_pretrained(newest)
    job.check_equal(model.state_dict(), torch.load(side / "model.pt"))
    job.check_equal(torch.load(newest / "optimizer.pt"), torch.load(side / "optimizer.pt"))
    run = trainer(directory, STEPS + EVERY)
    run.train(resume_from_checkpoint=True)
    assert run.state.global_step == STEPS + EVERY
    left = sorted((path.name for path in directory.glob("checkpoint-*")), key=lambda name: int(name.split("-")[1]))
    assert left == [f"checkpoint-{STEPS}", f"checkpoint-{STEPS + EVERY}"], f"rotation left {left}"


if __name__ == "__main__":
    job.main(save, load)
