"""Frame of a job: a program that saves with a framework, or loads what an earlier run of it saved and compares.

A job is started as ``JOB.py save|load DIRECTORY SIDE [VARIANT]``. DIRECTORY is where the framework saves; SIDE,
elsewhere, is where ``save`` notes what ``load`` must find. A job knows nothing of mounts and runs on any directory.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch


def main(save: Callable[[Path, Path, str], None], load: Callable[[Path, Path, str], None]) -> None:
    """Entry point of a job."""
    action, directory, side, *rest = sys.argv[1:]
    act = {"save": save, "load": load}[action]
    act(Path(directory), Path(side), rest[0] if rest else "")
    print(f"{action} done")


def note(side: Path, **facts: object) -> None:
    """Write down what ``load`` must find."""
    (side / "facts.json").write_text(json.dumps(facts), encoding="utf-8")


def noted(side: Path) -> dict[str, Any]:
    """What ``save`` wrote down."""
    return json.loads((side / "facts.json").read_text(encoding="utf-8"))


def seeded(*shape: int, seed: int) -> torch.Tensor:
    """A tensor that every run of the job makes equal."""
    import torch

    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def check_equal(found: Any, wanted: Any, where: str = "") -> None:
    """Assert that two nests of dicts, lists, tensors and plain values are equal, bit for bit."""
    import torch

    if isinstance(wanted, dict):
        assert set(found) == set(wanted), f"{where}: {sorted(map(str, found))} instead of {sorted(map(str, wanted))}"
        for key in wanted:
            check_equal(found[key], wanted[key], f"{where}/{key}")
    elif isinstance(wanted, (list, tuple)):
        assert len(found) == len(wanted), f"{where}: {len(found)} items instead of {len(wanted)}"
        for index, pair in enumerate(zip(found, wanted, strict=True)):
            check_equal(*pair, f"{where}[{index}]")
    elif isinstance(wanted, torch.Tensor):
        assert found.dtype == wanted.dtype, f"{where}: {found.dtype} instead of {wanted.dtype}"
        assert torch.equal(found, wanted), f"{where}: the tensor differs"
    else:
        assert found == wanted, f"{where}: {found!r} instead of {wanted!r}"


def on_ranks(count: int, body: Callable[..., None], *arguments: Any) -> None:
    """Run ``body(rank, *arguments)`` in ``count`` processes joined by gloo; raises when one of them fails."""
    import torch.multiprocessing as mp

    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_rank, args=(count, f"{folder}/rendezvous", body, arguments), nprocs=count)


def _rank(rank: int, count: int, rendezvous: str, body: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    import torch

    torch.set_num_threads(1)
    with process_group(rank, count, rendezvous):
        body(rank, *arguments)


@contextlib.contextmanager
def process_group(rank: int, count: int, rendezvous: str) -> Iterator[None]:
    """A gloo process group on the loopback interface."""
    import torch.distributed as dist

    os.environ.update(RANK=str(rank), WORLD_SIZE=str(count), LOCAL_RANK=str(rank), GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("cpu:gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=count)
    try:
        yield
    finally:
        dist.destroy_process_group()
