"""Orbax: a CheckpointManager that saves in the background, keeps two, and ends a step by renaming its directory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import job
import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

KEEP = 2
STEPS = 4


def tree(step: int) -> dict[str, Any]:
    """The state of a step."""
    draw = np.random.default_rng(step)
    return {
        "params": {"w": draw.standard_normal((1024, 1024), dtype=np.float32), "b": draw.standard_normal(1024)},
        "step": np.asarray(step),
    }


def manager(directory: Path) -> Any:
    import orbax.checkpoint as ocp

    return ocp.CheckpointManager(directory.resolve(), options=ocp.CheckpointManagerOptions(max_to_keep=KEEP))


def save(directory: Path, _side: Path, _variant: str) -> None:
    import jax
    import orbax.checkpoint as ocp

    with manager(directory) as keeper:
        for step in range(STEPS):
            state = jax.tree.map(jax.numpy.asarray, tree(step))
            assert keeper.save(step, args=ocp.args.StandardSave(state))
        keeper.wait_until_finished()
        assert sorted(keeper.all_steps()) == [STEPS - 2, STEPS - 1]
    left = [path.name for path in directory.iterdir() if "tmp" in path.name]
    assert not left, f"temporary directories were left: {left}"


def load(directory: Path, _side: Path, _variant: str) -> None:
    import jax
    import orbax.checkpoint as ocp

    with manager(directory) as keeper:
        assert sorted(keeper.all_steps()) == [STEPS - 2, STEPS - 1]
        for step in keeper.all_steps():
            wanted = jax.tree.map(jax.numpy.asarray, tree(step))
            found = keeper.restore(step, args=ocp.args.StandardRestore(jax.tree.map(jax.numpy.zeros_like, wanted)))
            jax.tree.map(np.testing.assert_array_equal, found, wanted)


if __name__ == "__main__":
    job.main(save, load)
