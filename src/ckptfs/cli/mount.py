"""``ckptfs mount``, and ``mount.ckptfs`` for mount(8) and fstab."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from ckptfs import settings as settings_
from ckptfs.cli import cachedir, checks
from ckptfs.cli.parser import Parser
from ckptfs.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ckptfs.cli.parser import Commands
    from ckptfs.settings import Raw, Settings

EPILOG = """\
STORE_URL is one of
  s3://BUCKET/PREFIX?endpoint=URL&region=NAME   an S3 bucket, or one that speaks like it
  file:///DIRECTORY                             a directory as the bucket, for trying things out
Credentials come from the provider's own chain (for S3: AWS_* variables, ~/.aws, instance role).

Returns when the mount is usable. The daemon's log is CACHE_DIR/ckptfs.log.

examples:
  ckptfs mount s3://my-bucket/runs /mnt/runs --cache-dir /nvme/ckptfs --cache-size 500GiB
  ckptfs mount 's3://my-bucket?endpoint=https://minio.local:9000' /mnt/runs --close async
  ckptfs mount file:///srv/bucket /mnt/runs --read-only
  ckptfs mount --config /etc/ckptfs/runs.toml

a config file has the options' names as keys, with underscores:
  store_url = "s3://my-bucket/runs"
  mountpoint = "/mnt/runs"
  cache_size = "500GiB"
  refresh = "1m"

a line of /etc/fstab:
  s3://my-bucket/runs  /mnt/runs  ckptfs  _netdev,cache_dir=/nvme/ckptfs,close=async  0  0
"""


KERNEL = ", ".join(sorted(settings_.KERNEL_OPTIONS))

GROUPS: Final = {
    "local space": [
        (
            "--cache-dir",
            "DIR",
            "staging, cache and namespace, on a fast local disk; of one store (default: in /var/cache/ckptfs)",
        ),
        ("--cache-size", "SIZE", "most space that staged and cached files take (default: what the disk has)"),
    ],
    "what calls promise": [
        (
            "--close",
            "sync|async",
            "close of a written file returns when its bytes are on the local disk (sync, default), or at once (async)",
        ),
        ("--refresh", "TIME", "show what others changed in the bucket after at most this long (default 30s)"),
        ("--read-only", "", "never write to the bucket; writing calls fail with EROFS"),
    ],
    "owner and mode of what other tools put into the bucket": [
        ("--uid", "N", "owner (default: who mounts)"),
        ("--gid", "N", "group (default: that of who mounts)"),
        ("--file-mode", "MODE", "of files (default 0644)"),
        ("--dir-mode", "MODE", "of directories (default 0755)"),
        ("--allow-other", "", "let other users in, permission bits deciding (default: if root mounts)"),
        ("--no-allow-other", "", "keep other users out"),
    ],
    "publication": [
        ("--part-size", "SIZE", "size of an upload's parts (default 8MiB)"),
        ("--uploads", "N", "objects and parts that go up at once (default 8)"),
    ],
    "daemon": [
        ("--driver", "auto|pyfuse3", "how to speak to the kernel (default auto)"),
        ("--log-level", "LEVEL", "debug, info (default), warning or error"),
        ("--foreground", "", "stay in the terminal; log to standard error"),
    ],
}
"""Options by group: name, what its value is called (nothing for a flag), what it does."""


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = commands.add("mount", "show a bucket as a filesystem", run, epilog=EPILOG)
    parser.add_argument("store_url", nargs="?", metavar="STORE_URL", help="what to mount; see below")
    parser.add_argument("mountpoint", nargs="?", metavar="MOUNTPOINT", help="an existing directory")
    parser.add_argument("--config", metavar="FILE", help="read settings from a TOML file; the command line wins")
    parser.add_argument(
        "-o",
        dest="options",
        action="append",
        default=[],
        metavar="OPT[,OPT]",
        help=f"settings as mount(8) writes them (cache_size=1TiB,ro), and the kernel's: {KERNEL}",
    )
    for title, options in GROUPS.items():
        group = parser.add_argument_group(title)
        for name, metavar, text in options:
            if metavar:
                group.add_argument(name, metavar=metavar, default=argparse.SUPPRESS, help=text)
            elif name.startswith("--no-"):
                dest = name.removeprefix("--no-").replace("-", "_")
                group.add_argument(name, dest=dest, action="store_false", default=argparse.SUPPRESS, help=text)
            else:
                group.add_argument(name, action="store_true", default=argparse.SUPPRESS, help=text)


def run(arguments: argparse.Namespace) -> int:
    """Mount."""
    given: dict[str, Raw] = {
        name: value
        for name, value in vars(arguments).items()
        if name in settings_.NAMES - {"options"} and value is not None
    }
    options = settings_.parse_options(",".join(arguments.options))
    config = arguments.config or options.pop("config", None)
    options.pop("config", None)
    settings = _settings(config, options, given)
    pid = _mount(settings)
    if pid is not None:
        print(f"{settings.store_url} is mounted on {settings.mountpoint} (pid {pid})")
    return 0


def helper(arguments: Sequence[str]) -> int:
    """``mount.ckptfs SPEC DIR [-sfnv] [-o OPTIONS]``, as mount(8) calls it. Says nothing when all is well."""
    parser = Parser("mount.ckptfs", description="Mount a bucket; called by mount(8). See ckptfs mount --help.")
    parser.add_argument("store_url", metavar="STORE_URL")
    parser.add_argument("mountpoint", metavar="MOUNTPOINT")
    parser.add_argument("-o", dest="options", action="append", default=[], metavar="OPTIONS")
    parser.add_argument("-f", dest="fake", action="store_true", help="check everything, but do not mount")
    for option in ("-s", "-v", "-n"):
        parser.add_argument(option, action="store_true", help="accepted, changes nothing")
    parser.add_argument("-t", dest="type", metavar="TYPE", help="accepted, changes nothing")
    given = parser.parse(arguments)
    options = settings_.parse_options(",".join(given.options))
    config = options.pop("config", None)
    settings = _settings(config, options, {"store_url": given.store_url, "mountpoint": given.mountpoint})
    if given.fake:
        checks.check_mount(settings)
    else:
        _mount(settings)
    return 0


def _settings(config: Raw | None, options: Mapping[str, Raw], given: Mapping[str, Raw]) -> Settings:
    if config is not None and not isinstance(config, str):
        raise UsageError("config needs the path of a file", hint="Write it as config=FILE.")
    from_file = settings_.read_config(config) if config else {}
    return settings_.from_sources(
        from_file,
        options,
        given,
        default_cache_dir=lambda url: cachedir.default_path(checks.store_identity(url)),
    )


def _mount(settings: Settings) -> int | None:
    """The daemon's pid, or ``None`` after a session in the foreground has ended."""
    store = checks.store_identity(settings.store_url)
    checks.check_mount(settings)
    # Late: the parts of a daemon take longer to import than a mistake in the arguments should take to be told.
    from ckptfs.cli import process

    if settings.foreground:
        process.run_in_foreground(settings, store)
        return None
    return process.start(settings, store)
