"""``ckptfs status``: what is mounted, what is not yet published, and what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from ckptfs.admin import mounts, registry
from ckptfs.admin.client import ControlClient
from ckptfs.cli.locate import mount_of
from ckptfs.cli.output import count, duration, sentence, size, table
from ckptfs.errors import CkptfsError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from ckptfs.admin.registry import MountEntry
    from ckptfs.cli.parser import Commands

EPILOG = """\
Without MOUNTPOINT every mount of this user is shown. With --json the answer is
  {"version": 1, "mounts": [{"mountpoint": …, "store": …, "driver": …, "pid": …, "alive": …, "epoch": …,
     "states": {STATE: {"count": …, "bytes": …}}, "watermarks": {NAME: LSN}, "lag_s": …, "errors": […], …}]}
A mount whose daemon has died or does not answer has "problem" instead of what the daemon would say.

exit codes: 0 all is well, 1 a daemon has died or does not answer, 3 MOUNTPOINT is not mounted

examples:
  ckptfs status
  ckptfs status /mnt/runs --json | jq '.mounts[0].lag_s'
"""
FORMAT_VERSION = 1
_HEAD = frozenset({"mountpoint", "store", "driver", "pid"})
_QUIET = frozenset({"alive", "problem", "metrics", "hidden_samples"})
"""What only ``--json`` shows: for programs."""


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = commands.add("status", "show mounts, and what is not published yet", run, epilog=EPILOG)
    parser.add_argument("mountpoint", nargs="?", metavar="MOUNTPOINT", help="a mountpoint, or any path in a mount")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Show."""
    entries = registry.entries() if arguments.mountpoint is None else [mount_of(arguments.mountpoint)]
    reports = [report for report in map(_report, entries) if report is not None]
    if arguments.json:
        print(json.dumps({"version": FORMAT_VERSION, "mounts": reports}, indent=2))
    elif not reports:
        print("Nothing is mounted.")
    else:
        print("\n\n".join(map(_text, reports)))
    return 1 if any("problem" in report for report in reports) else 0


def _report(entry: MountEntry) -> dict[str, object] | None:
    """What is known of one mount; ``None`` if neither the daemon nor its mount is there any more."""
    known: dict[str, object] = {
        "mountpoint": entry.mountpoint,
        "store": entry.store,
        "driver": None,
        "pid": entry.pid,
        "alive": entry.is_alive,
        "cache_dir": entry.cache_dir,
        "log": entry.log,
    }
    if not entry.is_alive:
        mountpoint = Path(entry.mountpoint)
        if mounts.mounted_at(mountpoint) is None:
            registry.unregister(mountpoint)
            return None
        known["problem"] = f"the daemon has ended without unmounting; clear it away: ckptfs umount {entry.mountpoint}"
        return known
    try:
        with ControlClient(entry) as client:
            return {**known, **client.status()}
    except CkptfsError as error:
        return {**known, "problem": sentence(error)}


def _text(report: Mapping[str, object]) -> str:
    """One mount for people: a line that says what it is, then what is worth knowing, one line each."""
    lines = [f"{report['mountpoint']}  shows  {report['store']}"]
    rows: list[tuple[str, str]] = []
    if "problem" in report:
        rows.append(("PROBLEM", str(report["problem"])))
    rows.append(("daemon", f"pid {report['pid']}, driver {report['driver'] or 'unknown'}"))
    for key, value in report.items():
        if key in _HEAD or key in _QUIET or value in (None, "", [], {}):
            continue
        if key == "errors" and isinstance(value, list):
            rows.extend(("ERROR", _error(item)) for item in value)
        else:
            rows.append(_row(key, value))
    body = table(rows)
    return "\n".join([*lines, *(f"  {line}" for line in body.split("\n"))])


def _row(key: str, value: object) -> tuple[str, str]:
    """A key and its value in words, by the unit that the key ends in."""
    for ending, convert in (("_bytes", size), ("_s", duration)):
        if key.endswith(ending) and isinstance(value, int | float):
            return key.removesuffix(ending).replace("_", " "), convert(value)
    return key.replace("_", " "), _value(value)


def _value(value: object) -> str:
    if isinstance(value, dict):
        if set(value) == {"count", "bytes"}:
            return f"{value['count']} ({size(value['bytes'])})"
        parts = (_row(str(key), item) for key, item in value.items() if item not in ({"count": 0, "bytes": 0}, None))
        return ", ".join(f"{name} {text}" for name, text in parts) or "none"
    if isinstance(value, list):
        return (
            ", ".join(map(_value, value))
            if len(value) <= 5
            else count(len(value), "entry").replace("entrys", "entries")
        )
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def _error(item: object) -> str:
    if isinstance(item, dict) and "message" in item:
        return f"{item['path']}: {item['message']}" if item.get("path") else str(item["message"])
    return _value(item)
