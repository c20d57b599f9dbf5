"""``ckptfs wait``: return when what was saved has reached a level of safety."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ckptfs.admin.client import ControlClient
from ckptfs.cli.locate import is_inside, mount_of
from ckptfs.cli.output import Progress
from ckptfs.env import RealEnv
from ckptfs.errors import CkptfsError, DeadlineError, UsageError
from ckptfs.settings import parse_duration

if TYPE_CHECKING:
    import argparse

    from ckptfs.cli.parser import Commands
    from ckptfs.env import Env

LEVELS = ("replicated", "published", "verified")

EPILOG = """\
levels:
  published   in the bucket, visible under its name, and verified there by size and checksum

Everything that is under PATH when the command begins is waited for; what is written later is not.

exit codes: 0 reached, 3 no such path or not in a mount, 5 not reached within --timeout

examples:
  ckptfs wait /mnt/runs/step-1000
  ckptfs wait /mnt/runs/a.pt /mnt/runs/b.pt --level published --timeout 10m
"""


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = commands.add("wait", "wait until files are safe in the bucket", run, epilog=EPILOG)
    parser.add_argument("path", nargs="+", metavar="PATH", help="a file or directory in a mount")
    parser.add_argument("--level", choices=LEVELS, default="published", help="how safe (default: published)")
    parser.add_argument("--timeout", metavar="TIME", help="give up after this time, like 90s or 10m")


def run(arguments: argparse.Namespace) -> int:
    """Wait."""
    env = RealEnv()
    deadline_s = None
    if arguments.timeout is not None:
        deadline_s = env.monotonic_s() + parse_duration(arguments.timeout)
    for path in arguments.path:
        _wait(path, arguments.level, deadline_s, env)
    return 0


def _wait(path: str, level: str, deadline_s: float | None, env: Env) -> None:
    entry = mount_of(path)
    with ControlClient(entry) as client, Progress(f"{path} is {level}", env) as progress:
        client.request("pending")  # answers, so that the path may be looked at without hanging
        target = os.path.realpath(path)
        if not is_inside(target, entry.mountpoint):
            raise UsageError(f"a link that leads out of the mount: {path} is {target}", hint="Name what it points to.")
        remaining_s = None if deadline_s is None else max(0.0, deadline_s - env.monotonic_s())
        try:
            client.request(
                "wait",
                on_progress=progress.update,
                timeout_s=remaining_s,
                path=os.path.relpath(target, entry.mountpoint) if target != entry.mountpoint else "",
                level=level,
            )
        except DeadlineError as error:
            raise DeadlineError(
                f"not {level} yet: {path}", hint=error.hint or "Wait longer, or see 'ckptfs status' for errors."
            ) from None
        except CkptfsError as error:
            raise type(error)(f"cannot wait for {path}: {error}", hint=error.hint) from None
