"""The command line: finds the command, runs it, and makes one line and an exit code of what went wrong."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

from ckptfs import __version__
from ckptfs.cli import mount, status, umount, wait
from ckptfs.cli.output import print_error
from ckptfs.cli.parser import Commands, Parser
from ckptfs.errors import CkptfsError, UsageError
from ckptfs.settings import near

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

DESCRIPTION = """\
ckptfs shows an object-store bucket as a POSIX filesystem made for training checkpoints. What is saved lands on the
local disk at its speed, and is carried to the bucket in the order it was written.
"""

EPILOG = """\
a first try, with a directory as the bucket:
  mkdir -p /tmp/bucket /tmp/mnt
  ckptfs mount file:///tmp/bucket /tmp/mnt --cache-dir /tmp/cache
  cp model.pt /tmp/mnt/ && ckptfs wait /tmp/mnt/model.pt
  ckptfs status
  ckptfs umount /tmp/mnt

exit codes: 0 done, 1 failed, 2 usage, 3 not found or not mounted, 4 integrity failure, 5 timed out
'ckptfs COMMAND --help' explains each command.
"""

INTERRUPTED = 128 + signal.SIGINT


def main(arguments: Sequence[str] | None = None) -> int:
    """The command ``ckptfs``. Returns its exit code."""
    return _guarded(lambda: _ckptfs(sys.argv[1:] if arguments is None else arguments))


def mount_helper(arguments: Sequence[str] | None = None) -> int:
    """The command ``mount.ckptfs``, which mount(8) runs. Returns its exit code."""
    return _guarded(lambda: mount.helper(sys.argv[1:] if arguments is None else arguments))


def _ckptfs(arguments: Sequence[str]) -> int:
    parser = Parser(
        "ckptfs",
        description=DESCRIPTION,
        epilog=EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"ckptfs {__version__}")
    commands = Commands(parser)
    for module in (mount, umount, status, wait):
        module.add(commands)
    words = [argument for argument in arguments if not argument.startswith("-")]
    if words and words[0] not in commands.names:
        raise UsageError(f"unknown command: {words[0]!r}", hint=near(words[0], commands.names))
    namespace = parser.parse(arguments)
    if "run" not in namespace:
        parser.print_help(sys.stderr)
        return UsageError.exit_code
    run: Callable[[argparse.Namespace], int] = namespace.run
    return run(namespace)


def _guarded(command: Callable[[], int]) -> int:
    """Run a command; make an exit code, and one line on standard error, of how it ended."""
    sys.stdout.reconfigure(errors="surrogateescape")  # type: ignore[union-attr] # a text stream; names may be any bytes
    sys.stderr.reconfigure(errors="surrogateescape")  # type: ignore[union-attr]
    try:
        code = command()
        sys.stdout.flush()
    except CkptfsError as error:
        print_error(error)
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Who read our output has gone (| head). What is left in the buffer must not fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


if __name__ == "__main__":
    sys.exit(main())
