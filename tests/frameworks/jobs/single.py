"""One process, one file: torch.save with its mapped load, and safetensors; also over a file that is mapped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import job

if TYPE_CHECKING:
    from pathlib import Path


def tensors(seed: int) -> dict[str, Any]:
    return {f"layer.{index}": job.seeded(1024, 1024 + 32 * index, seed=seed + index) for index in range(4)}


def save(directory: Path, _side: Path, variant: str) -> None:
    if variant.startswith("torch"):
        save_torch(directory, mapped=variant == "torch-mapped")
    else:
        save_safetensors(directory)


def save_torch(directory: Path, *, mapped: bool) -> None:
    import torch

    path = directory / "model.pt"
    torch.save({"model": tensors(1), "step": 1}, path)
    reader = torch.load(path, mmap=True) if mapped else None
    torch.save({"model": tensors(2), "step": 2}, path)
    if reader is not None:
        # The file was truncated and rewritten under the map. On a local disk that changes it or ends in SIGBUS; a mount
        # shields the old content.
        job.check_equal(reader, {"model": tensors(1), "step": 1})
    with (directory / "legacy.pt").open("wb") as file:
        torch.save(tensors(3), file, _use_new_zipfile_serialization=False)


def save_safetensors(directory: Path) -> None:
    from safetensors import safe_open
    from safetensors.torch import save_file

    path = directory / "model.safetensors"
    save_file(tensors(1), path, metadata={"step": "1"})
    with safe_open(path, framework="pt") as mapped:
        save_file(tensors(2), path, metadata={"step": "2"})
        job.check_equal({name: mapped.get_tensor(name) for name in mapped.keys()}, tensors(1))  # noqa: SIM118
    leftovers = [entry.name for entry in directory.iterdir() if entry.name != path.name]
    assert not leftovers, f"temporary files were left: {leftovers}"


def load(directory: Path, _side: Path, variant: str) -> None:
    if variant.startswith("torch"):
        import torch

        path = directory / "model.pt"
        for options in ({"mmap": True}, {}, {"mmap": True, "weights_only": False}):
            job.check_equal(torch.load(path, **options), {"model": tensors(2), "step": 2})
        job.check_equal(torch.load(directory / "legacy.pt"), tensors(3))
    else:
        from safetensors import safe_open
        from safetensors.torch import load_file

        path = directory / "model.safetensors"
        job.check_equal(load_file(path), tensors(2))
        with safe_open(path, framework="pt") as file:
            assert file.metadata() == {"step": "2"}


if __name__ == "__main__":
    job.main(save, load)
