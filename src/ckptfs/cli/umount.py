"""``ckptfs umount``: publish everything, then unmount; or unmount at once and keep what is staged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptfs import limits
from ckptfs.admin import mounts, registry
from ckptfs.admin.client import ControlClient
from ckptfs.cli.locate import LIST_HINT, mountpoint_of
from ckptfs.cli.output import Progress, pending_text, print_note
from ckptfs.env import RealEnv
from ckptfs.errors import CkptfsError, DeadlineError, NotMountedError
from ckptfs.settings import parse_duration

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from ckptfs.admin.registry import MountEntry
    from ckptfs.cli.parser import Commands

EPILOG = """\
New writers are refused while everything is published; if that does not end in an unmount (timeout, ^C, mount in use),
they are accepted again. With --no-drain what is not yet published stays in the cache directory, and the next mount of
the same store with the same cache directory publishes it.

exit codes: 0 unmounted, 1 in use or failed, 3 nothing is mounted there, 5 not everything was published within --timeout

examples:
  ckptfs umount /mnt/runs
  ckptfs umount /mnt/runs --timeout 10m || ckptfs umount /mnt/runs --no-drain
"""


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = commands.add("umount", "publish what is left, and unmount", run, epilog=EPILOG)
    parser.add_argument("mountpoint", metavar="MOUNTPOINT")
    parser.add_argument("--no-drain", action="store_true", help="unmount at once; the next mount publishes the rest")
    parser.add_argument("--lazy", action="store_true", help="unmount even if it is in use: its users get errors")
    parser.add_argument("--timeout", metavar="TIME", help="give up if not everything is published within this time")


def run(arguments: argparse.Namespace) -> int:
    """Unmount."""
    timeout_s = None if arguments.timeout is None else parse_duration(arguments.timeout)
    mountpoint = mountpoint_of(arguments.mountpoint)
    entry = registry.find(mountpoint)
    if entry is None:
        return _unmount_unregistered(mountpoint)
    if not entry.is_alive:
        return _unmount_dead(mountpoint, entry, kept_is_fine=arguments.no_drain)
    with ControlClient(entry) as client:
        if not arguments.lazy:
            _name_holders(mountpoint)
        if not arguments.no_drain:
            _drain(client, entry, timeout_s)
        left = client.request("pending")["pending"]
        if not arguments.lazy and not mounts.unmount(mountpoint):
            raise CkptfsError(
                f"the mount is in use: {_users(mountpoint)}", hint="Close what is open there, or add --lazy."
            )
        client.stop()
    _await_end(mountpoint, entry)
    if left["objects"]:
        print_note(
            f"kept for the next mount: {pending_text(left)} not published yet. Mounting {entry.store} with"
            f" --cache-dir {entry.cache_dir} publishes the rest."
        )
    return 0


def _drain(client: ControlClient, entry: MountEntry, timeout_s: float | None) -> None:
    left: dict[str, int] = {}
    with Progress(f"everything of {entry.mountpoint} is published", RealEnv()) as progress:

        def on_progress(pending: dict[str, int]) -> None:
            left.update(pending)
            progress.update(pending)

        try:
            client.request("drain", on_progress=on_progress, timeout_s=timeout_s)
        except DeadlineError as error:
            if timeout_s is None or not left:
                raise
            raise DeadlineError(
                f"not everything is published after {timeout_s:g} s: {pending_text(left)} left;"
                f" still mounted: {entry.mountpoint}",
                hint=error.hint
                or "Wait longer, see 'ckptfs status' for errors, or keep the rest staged with --no-drain.",
            ) from None


def _await_end(mountpoint: Path, entry: MountEntry) -> None:
    """Return when the daemon has ended, and cleanly."""
    log = f"See its log: {entry.log}" if entry.log else ""
    if not registry.wait_for_end(entry, limits.STOP_S):
        raise DeadlineError(f"the daemon has not ended after {limits.STOP_S:g} s: pid {entry.pid}", hint=log)
    if registry.find(mountpoint) == entry:
        raise CkptfsError(
            f"the daemon did not end cleanly: pid {entry.pid}; what is not published stays staged in {entry.cache_dir}",
            hint=log,
        )


def _unmount_unregistered(mountpoint: Path) -> int:
    """Nobody of this user serves it: take a dead mount of ours away, say what it is otherwise."""
    here = mounts.mounted_at(mountpoint)
    if here is None:
        raise NotMountedError(f"nothing is mounted there: {mountpoint}", hint=LIST_HINT)
    if here.filesystem != mounts.FILESYSTEM_TYPE:
        raise NotMountedError(
            f"not a ckptfs mount but {here.filesystem}: {mountpoint}", hint=f"Use umount {mountpoint}"
        )
    if not mounts.is_dead(mountpoint):
        raise CkptfsError(
            f"another user mounted it, or with another {registry.RUNTIME_DIR_VARIABLE}: {mountpoint}",
            hint="Run this as that user.",
        )
    mounts.unmount(mountpoint, lazy=True)
    print_note(f"took away the dead mount of a daemon that had not unmounted: {mountpoint}")
    return 0


def _unmount_dead(mountpoint: Path, entry: MountEntry, *, kept_is_fine: bool) -> int:
    """The daemon is gone. Whether that is what the user wanted depends on whether everything had to be published."""
    here = mounts.mounted_at(mountpoint)
    if here is not None and here.filesystem == mounts.FILESYSTEM_TYPE:
        mounts.unmount(mountpoint, lazy=True)
    registry.unregister(mountpoint)
    text = f"the daemon (pid {entry.pid}) had ended without unmounting; its dead mount was taken away: {mountpoint}"
    remedy = f"What it had not published is staged in {entry.cache_dir}: the next mount of {entry.store} publishes it."
    if not kept_is_fine:
        raise CkptfsError(text, hint=remedy)
    print_note(f"{text}. {remedy}")
    return 0


def _name_holders(mountpoint: Path) -> None:
    """Say beforehand what will be in the way: publishing may take long."""
    users = mounts.holders(mountpoint)
    if users:
        print_note(f"note: in use by {', '.join(f'{user.name} (pid {user.pid})' for user in users)}: {users[0].path}")


def _users(mountpoint: Path) -> str:
    users = mounts.holders(mountpoint)
    if not users:
        return f"{mountpoint} (by processes that this user may not see)"
    return ", ".join(f"{user.path} by {user.name} (pid {user.pid})" for user in users)
