"""Train a small transformer and save it with PyTorch Distributed Checkpoint (DCP): the job that the demo runs.

The program knows nothing of ckptfs: it is given a directory and saves there, as any training job does. Started plainly
it launches its own ranks (``--ranks``), each a process; the ranks talk over gloo and hold a shard of the model each
(FSDP2). After every ``--save-every`` steps the whole training state goes to ``DIR/step-N``, in turn with a blocking
``save`` and with ``async_save``. A start finds the newest whole checkpoint, loads it, proves it, and goes on.

Exit code 0 when the steps are done, or, with ``--kill-in-save-of``, when the ranks were killed in the middle of that
save.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

WHOLE = ".metadata"
"""DCP gives this name last, so a checkpoint that has it is whole."""

BATCH = 8
WINDOW = 64
LAUNCH_S = 300.0
KILL_BYTES = 32 << 20
"""A save is in its middle when a shard has this size: the whole one has about five times as much."""
LOSS_TOLERANCE = 0.02
"""Relative: what the order of a sum over ranks may change in a loss, with room."""


def log_path(options: argparse.Namespace) -> Path:
    """Where losses and fingerprints of earlier runs stand: beside the mount, to prove what the mount holds."""
    return Path(options.log)


def recorded(options: argparse.Namespace) -> dict[int, dict[str, Any]]:
    """What earlier runs wrote down for each step."""
    if not log_path(options).exists():
        return {}
    known: dict[int, dict[str, Any]] = {}
    for line in log_path(options).read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        known.setdefault(entry["step"], {}).update(entry)
    return known


def record(options: argparse.Namespace, **entry: object) -> None:
    """Write down something about a step."""
    with log_path(options).open("a", encoding="utf-8") as log:
        log.write(json.dumps(entry) + "\n")


def last_whole_checkpoint(directory: Path) -> int | None:
    """The step of the newest checkpoint that is whole."""
    steps = [int(path.name.removeprefix("step-")) for path in directory.glob("step-*") if (path / WHOLE).exists()]
    return max(steps, default=None)


# ---------------------------------------------------------------------------------------------------------- one rank


def build_model() -> torch.nn.Module:
    """A byte-level transformer, 25 million parameters: with its optimizer 300 MB of training state."""
    from torch import nn

    class Transformer(nn.Module):
        def __init__(self, width: int = 512, depth: int = 8) -> None:
            super().__init__()
            self.embed = nn.Embedding(256, width)
            self.place = nn.Embedding(WINDOW, width)
            self.layers = nn.ModuleList(
                nn.TransformerEncoderLayer(
                    width, nhead=8, dim_feedforward=4 * width, dropout=0.0, batch_first=True, norm_first=True
                )
                for _ in range(depth)
            )
            self.out = nn.Linear(width, 256)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
            x = self.embed(tokens) + self.place.weight[: tokens.shape[1]]
            for layer in self.layers:
                x = layer(x, src_mask=mask, is_causal=True)
            return self.out(x).clone()  # FSDP2 asks for a tensor of its own, not a view

    return Transformer()


def batch_of(text: torch.Tensor, step: int, rank: int, ranks: int) -> torch.Tensor:
    """This rank's share of the batch of ``step``; the whole batch does not depend on how many ranks share it."""
    import torch

    generator = torch.Generator().manual_seed(step)
    starts = torch.randint(len(text) - WINDOW - 1, (BATCH,), generator=generator)
    return torch.stack([text[start : start + WINDOW + 1] for start in starts[rank::ranks]])


def fingerprint(state: dict[str, Any]) -> str:
    """SHA-256 over every parameter, whole, whatever the number of ranks that hold it. All ranks must call it."""
    import torch

    digest = hashlib.sha256()
    for name in sorted(state["model"]):
        tensor = state["model"][name]
        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        digest.update(name.encode() + whole.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


class Rank:
    """One rank of the job: the model and optimizer, and how they are trained, saved and loaded."""

    def __init__(self, options: argparse.Namespace) -> None:
        import torch
        import torch.distributed as dist
        from torch.distributed.fsdp import fully_shard

        self.options = options
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(0)
        self.model = build_model()
        mesh = dist.init_device_mesh("cpu", (self.ranks,))
        for layer in self.model.layers:  # type: ignore[union-attr]
            fully_shard(layer, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.text = torch.frombuffer(bytearray(Path(options.text).read_bytes()), dtype=torch.uint8).long()
        # A save in the background talks over a group of its own, or its messages would mix with those of the training.
        self.background = dist.new_group(backend="gloo")
        self.pending: Any = None
        self.recorded = recorded(options)

    def say(self, message: str) -> None:
        """Print once for all ranks."""
        if self.rank == 0:
            print(f"    {message}", flush=True)

    def state(self) -> dict[str, Any]:
        """Everything a resumed run needs, each rank its shard."""
        from torch.distributed.checkpoint.state_dict import get_state_dict

        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def train_step(self, step: int) -> float:
        """One step; the loss over the whole batch."""
        import torch.distributed as dist
        from torch.nn import functional

        tokens = batch_of(self.text, step, self.rank, self.ranks)
        logits = self.model(tokens[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        total = loss.detach() / self.ranks
        dist.all_reduce(total)
        return total.item()

    def save(self, step: int) -> None:
        """Save as ``step-N``: every other time in the background, while training goes on."""
        import torch.distributed.checkpoint as dcp

        state = self.state()
        mark = fingerprint(state)
        target = Path(self.options.directory) / f"step-{step}"
        in_background = (step // self.options.save_every) % 2 == 0
        began = time.monotonic()
        if in_background:
            self.pending = dcp.async_save(state, checkpoint_id=target, process_group=self.background)
        else:
            dcp.save(state, checkpoint_id=target)
        kind = "async_save (goes on in the background)" if in_background else "save"
        self.say(f"step {step}: {kind} to {target.name} took {time.monotonic() - began:.2f} s")
        if self.rank == 0:
            record(self.options, step=step, fingerprint=mark)

    def finish_save(self) -> None:
        """Wait for the save in the background, if there is one."""
        if self.pending is not None:
            self.pending.result()
            self.pending = None

    def resume(self) -> int:
        """Load the last whole checkpoint and prove it: the step to go on after, 0 without one.

        Raises:
            SystemExit: the loaded parameters are not the saved ones.
        """
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict import set_state_dict

        step = last_whole_checkpoint(Path(self.options.directory))
        if step is None:
            self.say(f"no checkpoint yet: training from the start on {self.ranks} rank(s)")
            return 0
        state = self.state()
        dcp.load(state, checkpoint_id=Path(self.options.directory) / f"step-{step}")
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        if fingerprint(self.state()) != self.recorded[step]["fingerprint"]:
            sys.exit(f"the parameters loaded from step-{step} are not those that were saved")
        self.say(f"resumed from step-{step} on {self.ranks} rank(s): every parameter equal to what was saved")
        return step

    def check_loss(self, step: int, loss: float) -> None:
        """A step that an earlier run did too must come to the same loss: then the whole state was restored.

        Raises:
            SystemExit: it did not.
        """
        earlier = self.recorded.get(step, {}).get("loss")
        if earlier is not None and abs(earlier - loss) > LOSS_TOLERANCE * earlier:
            sys.exit(f"step {step}: loss {loss:.4f}, but {earlier:.4f} before the restart: the state was not restored")
        same = "" if earlier is None else f" (before the restart: {earlier:.4f})"
        self.say(f"step {step}: loss {loss:.4f}{same}")
        if self.rank == 0:
            record(self.options, step=step, loss=loss)

    def run(self) -> None:
        """Train from the last whole checkpoint to the last step."""
        done = self.resume()
        for step in range(done + 1, self.options.steps + 1):
            self.check_loss(step, self.train_step(step))
            if step % self.options.save_every == 0:
                self.finish_save()
                self.save(step)
        self.finish_save()


def run_rank(options: argparse.Namespace) -> None:
    """Body of one rank's process."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "cpu:gloo", init_method=f"file://{options.rendezvous}", rank=options.rank, world_size=options.ranks
    )
    Rank(options).run()
    dist.destroy_process_group()


# ------------------------------------------------------------------------------------------------------ the launcher


def launch_ranks(arguments: Iterable[str], ranks: int, rendezvous: Path) -> list[subprocess.Popen[bytes]]:
    """Start the ranks, each this program again."""
    # Gloo listens on the loopback interface only.
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, *arguments, "--rendezvous", str(rendezvous)]
    return [subprocess.Popen([*command, "--rank", str(rank)], env=environment) for rank in range(ranks)]


def kill_in_save(processes: list[subprocess.Popen[bytes]], target: Path) -> None:
    """SIGKILL all ranks when the save to ``target`` has begun and is not whole.

    Raises:
        SystemExit: the ranks ended by themselves, or the save was whole already.
    """
    deadline = time.monotonic() + LAUNCH_S
    while not any(shard.stat().st_size > KILL_BYTES for shard in target.glob("__*.distcp")):
        if time.monotonic() > deadline or any(process.poll() is not None for process in processes):
            stop(processes)
            sys.exit(f"the ranks never began to save to {target}")
        time.sleep(0.001)
    stop(processes)
    if (target / WHOLE).exists():
        sys.exit(f"the save to {target} was whole before the ranks could be killed: nothing is shown by that")
    written = sum(shard.stat().st_size for shard in target.glob("__*.distcp"))
    print(f"    killed both ranks (kill -9) in the middle of the save to {target.name}: {written / 1e6:.0f} MB written")


def stop(processes: list[subprocess.Popen[bytes]]) -> None:
    """SIGKILL the processes that still run, each by its own id, and reap them."""
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
    for process in processes:
        process.wait()


def wait_for(processes: list[subprocess.Popen[bytes]]) -> int:
    """The first exit code that is not 0; the other ranks are killed then, as they would wait for ever."""
    deadline = time.monotonic() + LAUNCH_S
    while any(process.poll() is None for process in processes):
        if any(process.poll() for process in processes) or time.monotonic() > deadline:
            stop(processes)
            return 1
        time.sleep(0.02)
    return next((process.returncode for process in processes if process.returncode), 0)


def main() -> int:
    """Entry point: the launcher, or one rank when it was started as such."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("directory", help="where the checkpoints go")
    parser.add_argument("--log", required=True, help="losses and fingerprints of all runs; outside of DIRECTORY")
    parser.add_argument("--text", default=str(Path(__file__).parents[2] / "LICENSE"), help="what to learn")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--save-every", type=int, default=2)
    parser.add_argument(
        "--kill-in-save-of", type=int, metavar="STEP", help="kill -9 the ranks in the middle of that save"
    )
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--rendezvous", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        run_rank(options)
        return 0
    Path(options.directory).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        processes = launch_ranks(sys.argv[1:], options.ranks, Path(folder) / "rendezvous")
        try:
            if options.kill_in_save_of is None:
                return wait_for(processes)
            kill_in_save(processes, Path(options.directory) / f"step-{options.kill_in_save_of}")
            return 0
        finally:
            stop(processes)


if __name__ == "__main__":
    sys.exit(main())
