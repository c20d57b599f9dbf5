"""Lightning: ModelCheckpoint with its best, its newest, and the symlink `last`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import job

if TYPE_CHECKING:
    from pathlib import Path

EPOCHS = 3


def fit(directory: Path, epochs: int, checkpoint: str | None) -> tuple[Any, Any]:
    """Train (on) and return the trainer and the module."""
    import lightning as pl
    import torch
    from lightning.pytorch.callbacks import ModelCheckpoint
    from torch.utils.data import DataLoader, TensorDataset

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1))

        def training_step(self, batch: Any, _index: int) -> Any:
            loss = self.net(batch[0]).square().mean()
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    pl.seed_everything(3, workers=True, verbose=False)
    module = Module()
    saver = ModelCheckpoint(directory, filename="{epoch}", monitor="epoch", mode="max", save_top_k=2, save_last="link")
    trainer = pl.Trainer(
        max_epochs=epochs, accelerator="cpu", logger=False, callbacks=[saver], enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=directory,
    )  # fmt: skip
    data = DataLoader(TensorDataset(job.seeded(64, 256, seed=4)), batch_size=16)
    trainer.fit(module, data, ckpt_path=checkpoint, weights_only=False)
    return trainer, module


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def save(directory: Path, side: Path, _variant: str) -> None:
    import torch

    _, module = fit(directory, EPOCHS, None)
    assert names(directory) == ["epoch=1.ckpt", "epoch=2.ckpt", "last.ckpt"], names(directory)
    last = directory / "last.ckpt"
    assert last.is_symlink()
    assert last.resolve() == (directory / "epoch=2.ckpt").resolve()
    job.check_equal(torch.load(last, weights_only=False)["state_dict"], module.state_dict())
    torch.save(module.state_dict(), side / "model.pt")


def load(directory: Path, side: Path, _variant: str) -> None:
    import torch

    newest = directory / f"epoch={EPOCHS - 1}.ckpt"
    job.check_equal(torch.load(newest, weights_only=False)["state_dict"], torch.load(side / "model.pt"))
    trainer, _ = fit(directory, EPOCHS + 1, str(newest))
    assert trainer.current_epoch == EPOCHS + 1
    assert (directory / "last.ckpt").resolve() == (directory / f"epoch={EPOCHS}.ckpt").resolve()


if __name__ == "__main__":
    job.main(save, load)
