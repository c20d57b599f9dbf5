"""Programs that ask much of a filesystem: SQLite, git, cp, rsync, tar."""

from __future__ import annotations

import filecmp
import itertools
import os
import sqlite3
import subprocess
from typing import TYPE_CHECKING

import pytest
from fs_support import NAMES, files_of, payload, run, start_python

if TYPE_CHECKING:
    from pathlib import Path

_SQLITE_WORKER = """
import sqlite3, sys
path, mode, worker = sys.argv[1:]
database = sqlite3.connect(path, timeout=60, isolation_level=None)
assert database.execute(f"pragma journal_mode={mode}").fetchone()[0] == mode
for number in range(60):
    database.execute("begin immediate")
    (total,) = database.execute("select total from counter").fetchone()
    database.execute("update counter set total = ?", (total + 1,))
    database.execute("insert into log values (?, ?, ?)", (worker, number, bytes(3000)))
    database.execute("rollback" if number % 10 == 9 else "commit")
"""


@pytest.mark.parametrize("mode", ["delete", "truncate", "persist", "wal"])
def test_sqlite_with_two_processes(here: Path, mode: str) -> None:
    """Locks, journals and (WAL) a shared map: no transaction lost, none half done, the database sound."""
    path = here / "db"
    with sqlite3.connect(path) as database:
        database.execute(f"pragma journal_mode={mode}")
        database.execute("create table counter (total)")
        database.execute("insert into counter values (0)")
        database.execute("create table log (worker, number, body)")
    database.close()
    workers = [start_python(_SQLITE_WORKER, path, mode, str(number)) for number in range(2)]
    for worker in workers:
        _, errors = worker.communicate(timeout=120)
        assert worker.returncode == 0, errors
    database = sqlite3.connect(path)
    assert database.execute("pragma integrity_check").fetchone() == ("ok",)
    assert database.execute("select total from counter").fetchone() == (108,)
    assert database.execute("select count(*) from log").fetchone() == (108,)
    database.close()


def _git(directory: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.invalid", "-c", "init.defaultBranch=main")
    return run("git", *identity, "-C", directory, *arguments)


def test_git(here: Path, tmp_path: Path) -> None:
    """A repository made, packed, cloned (hard links) and checked on the mount, equal to a local clone."""
    origin = here / "origin"
    origin.mkdir()
    _git(origin, "init", "-q")
    for number in range(40):
        (origin / f"dir{number % 5}").mkdir(exist_ok=True)
        (origin / f"dir{number % 5}" / f"f{number}").write_bytes(payload(number * 997, number))
        if number % 8 == 0:
            _git(origin, "add", "-A")
            _git(origin, "commit", "-q", "-m", str(number))
    _git(origin, "checkout", "-q", "-b", "side", "HEAD~2")
    (origin / "side").write_bytes(b"side")
    (origin / "run").symlink_to("side")
    _git(origin, "add", "-A")
    _git(origin, "commit", "-q", "-m", "side")
    _git(origin, "merge", "-q", "-m", "merge", "main")
    _git(origin, "gc", "-q")
    run("git", "clone", "-q", origin, here / "clone")
    run("git", "clone", "-q", origin, tmp_path / "clone")
    for repository in (origin, here / "clone"):
        _git(repository, "fsck", "--full", "--strict")
        assert _git(repository, "status", "--porcelain", "-uno") == ""
    checked_out, local = files_of(here / "clone"), files_of(tmp_path / "clone")
    assert {k: v for k, v in checked_out.items() if not k.startswith(b".git/")} == {
        k: v for k, v in local.items() if not k.startswith(b".git/")
    }


def _make_tree(root: Path) -> None:
    (root / "d" / "empty").mkdir(parents=True)
    for number, name in enumerate(NAMES):
        path = os.path.join(os.fsencode(root / "d"), name)
        with open(path, "wb") as file:
            file.write(payload(number * 1001, number))
        os.chmod(path, (0o644, 0o600, 0o755, 0o444)[number % 4])
        os.utime(path, ns=(10**18 + number, 10**18 + 123_456_789 + number))
    (root / "relative").symlink_to("d/...")
    (root / "dangling").symlink_to("/nowhere/at/all")
    os.link(root / "d" / "...", root / "twin")
    os.mkfifo(root / "pipe")
    with (root / "sparse").open("wb") as file:
        file.truncate(5_000_000)
        file.seek(3_000_000)
        file.write(b"island")
    os.setxattr(root / "sparse", "user.note", bytes(range(256)))
    os.chown(root / "sparse", 1234, 5678)
    (root / "d").chmod(0o2750)
    for path in (root / "pipe", root / "sparse", root / "d" / "empty", root / "d"):
        os.utime(path, ns=(1, 1_234_567_890_123_456_789))


def _describe_tree(root: Path) -> dict[bytes, tuple[object, ...]]:
    records: dict[bytes, tuple[object, ...]] = {}
    twins: dict[int, list[bytes]] = {}
    for directory, names, files in os.walk(os.fsencode(root)):
        for name in sorted([*names, *files]):
            path = os.path.join(directory, name)
            relative = os.path.relpath(path, os.fsencode(root))
            status = os.lstat(path)
            mtime_ns = 0 if os.path.islink(path) else status.st_mtime_ns
            records[relative] = (oct(status.st_mode), status.st_uid, status.st_gid, mtime_ns)
            if not os.path.isdir(path):
                twins.setdefault(status.st_ino, []).append(relative)
                records[relative] += (status.st_size, status.st_nlink)
            if not os.path.islink(path):
                records[relative] += tuple((n, os.getxattr(path, n)) for n in os.listxattr(path) if n[:5] == "user.")
    groups = {min(names): (b"same file", *sorted(names)) for names in twins.values() if len(names) > 1}
    return {**records, **groups}


_COPIES: dict[str, tuple[tuple[str, ...], ...]] = {
    "cp": (("cp", "-a", "{from}", "{to}"),),
    "cp sparse": (("cp", "-a", "--sparse=always", "{from}", "{to}"),),
    "rsync": (("rsync", "-aHAX", "{from}/", "{to}"), ("rsync", "-aHAX", "--checksum", "--delete", "{from}/", "{to}")),
    "rsync inplace": (("rsync", "-aHAX", "--inplace", "{from}/", "{to}"),),
    "tar": (
        ("tar", "-C", "{from}", "--xattrs", "--format=posix", "-cf", "{to}.tar", "."),
        ("mkdir", "{to}"),
        ("tar", "-C", "{to}", "--xattrs", "--xattrs-include=*", "--same-owner", "-xpf", "{to}.tar"),
    ),
}


@pytest.mark.parametrize("tool", _COPIES)
def test_round_trips(here: Path, tmp_path: Path, tool: str) -> None:
    """A tree of everything goes onto the mount, within it and back, and is the same in everything."""
    trees = [tmp_path / "tree", here / "onto", here / "within", tmp_path / "back"]
    trees[0].mkdir()
    _make_tree(trees[0])
    expected = _describe_tree(trees[0])
    for source, target in itertools.pairwise(trees):
        for command in _COPIES[tool]:
            run(*(part.replace("{from}", str(source)).replace("{to}", str(target)) for part in command))
        assert _describe_tree(target) == expected
        assert files_of(target) == files_of(trees[0])


def test_rsync_finds_nothing_left_to_do(here: Path, tmp_path: Path) -> None:
    """A second rsync by size and time changes nothing: the times that were set are the times that are told."""
    (tmp_path / "tree").mkdir()
    _make_tree(tmp_path / "tree")
    run("rsync", "-aHAX", f"{tmp_path}/tree/", here / "tree")
    assert run("rsync", "-aHAXi", f"{tmp_path}/tree/", here / "tree") == ""


def test_compilers_and_shells(here: Path) -> None:
    """A program compiled on the mount runs from the mount; shell redirections, pipes and here-documents work."""
    (here / "hello.sh").write_text("#!/bin/sh\ncat <<END >out\nhello $1\nEND\ncat out >>log; cat out | tr a-z A-Z\n")
    (here / "hello.sh").chmod(0o755)
    assert subprocess.check_output(["./hello.sh", "world"], cwd=here, text=True) == "HELLO WORLD\n"
    assert subprocess.check_output(["./hello.sh", "again"], cwd=here, text=True) == "HELLO AGAIN\n"
    assert (here / "log").read_text() == "hello world\nhello again\n"
    assert filecmp.cmp(here / "out", here / "out", shallow=False)
