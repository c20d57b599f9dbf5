"""NS-1, NS-2: random operations on the namespace and on a plain model of a tree give the same answers."""

from __future__ import annotations

import contextlib
import errno
import stat
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckptfs.env import RealEnv
from ckptfs.errors import PosixError
from ckptfs.namespace import Namespace
from ckptfs.namespace.tree import RENAME_EXCHANGE, RENAME_NOREPLACE
from ckptfs.types import ROOT_INO, Ino

if TYPE_CHECKING:
    from collections.abc import Callable

NAMES = [b"a", b"b", b"c"]


@dataclass(eq=False)
class Node:
    """A file (no children) or a directory of the model."""

    children: dict[bytes, Node] | None = None
    names: set[tuple[int, bytes]] = field(default_factory=set)

    @property
    def nlink(self) -> int:
        if self.children is None:
            return len(self.names)
        return 2 + sum(child.children is not None for child in self.children.values())


class Model:
    """What POSIX says a tree does, in the plainest way."""

    def __init__(self) -> None:
        self.root = Node({})

    def find(self, path: tuple[bytes, ...]) -> Node:
        node = self.root
        for name in path:
            if node.children is None:
                raise PosixError(errno.ENOTDIR)
            if name not in node.children:
                raise PosixError(errno.ENOENT)
            node = node.children[name]
        return node

    def parent(self, path: tuple[bytes, ...]) -> dict[bytes, Node]:
        node = self.find(path[:-1])
        if node.children is None:
            raise PosixError(errno.ENOTDIR)
        return node.children

    def make(self, path: tuple[bytes, ...], node: Node) -> None:
        siblings = self.parent(path)
        if path[-1] in siblings:
            raise PosixError(errno.EEXIST)
        siblings[path[-1]] = node
        node.names.add((id(siblings), path[-1]))

    def link(self, source: tuple[bytes, ...], target: tuple[bytes, ...]) -> None:
        node = self.find(source)
        siblings = self.parent(target)
        if node.children is not None:
            raise PosixError(errno.EPERM)
        if target[-1] in siblings:
            raise PosixError(errno.EEXIST)
        siblings[target[-1]] = node
        node.names.add((id(siblings), target[-1]))

    def remove(self, path: tuple[bytes, ...], *, directory: bool) -> None:
        siblings = self.parent(path)
        if path[-1] not in siblings:
            raise PosixError(errno.ENOENT)
        node = siblings[path[-1]]
        if directory and node.children is None:
            raise PosixError(errno.ENOTDIR)
        if directory and node.children:
            raise PosixError(errno.ENOTEMPTY)
        if not directory and node.children is not None:
            raise PosixError(errno.EISDIR)
        del siblings[path[-1]]
        node.names.discard((id(siblings), path[-1]))

    def rename(  # noqa: C901, PLR0912 - POSIX's own list of cases, one after the other
        self, source: tuple[bytes, ...], target: tuple[bytes, ...], flags: int
    ) -> None:
        here, there = self.parent(source), self.parent(target)
        if source[-1] not in here:
            raise PosixError(errno.ENOENT)
        node, other = here[source[-1]], there.get(target[-1])
        if node.children is not None and target[: len(source)] == source and len(target) > len(source):
            raise PosixError(errno.EINVAL)
        if flags == RENAME_EXCHANGE:
            if other is None:
                raise PosixError(errno.ENOENT)
            if other.children is not None and source[: len(target)] == target and len(source) > len(target):
                raise PosixError(errno.EINVAL)
        elif other is not None:
            if flags == RENAME_NOREPLACE:
                raise PosixError(errno.EEXIST)
            if other is node:
                return
            if other.children is not None and node.children is None:
                raise PosixError(errno.EISDIR)
            if other.children is None and node.children is not None:
                raise PosixError(errno.ENOTDIR)
            if other.children:
                raise PosixError(errno.ENOTEMPTY)
        if other is node:
            return
        if other is not None:
            other.names.discard((id(there), target[-1]))
        node.names.discard((id(here), source[-1]))
        there[target[-1]] = node
        node.names.add((id(there), target[-1]))
        if flags == RENAME_EXCHANGE:
            assert other is not None
            here[source[-1]] = other
            other.names.add((id(here), source[-1]))
        else:
            del here[source[-1]]


PATHS = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map(tuple)
OPS = st.one_of(
    st.tuples(st.just("create"), PATHS),
    st.tuples(st.just("mkdir"), PATHS),
    st.tuples(st.just("unlink"), PATHS),
    st.tuples(st.just("rmdir"), PATHS),
    st.tuples(st.just("link"), PATHS, PATHS),
    st.tuples(st.just("rename"), PATHS, PATHS, st.sampled_from([0, 0, 0, RENAME_NOREPLACE, RENAME_EXCHANGE])),
    st.tuples(st.just("supersede"), PATHS),
    st.tuples(st.just("commit")),
    st.tuples(st.just("restart")),
)


class Subject:
    """The namespace, driven by paths as the kernel drives it by inodes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.open()

    def open(self) -> None:
        self.namespace = Namespace(RealEnv(), self.path)
        for table in (self.namespace.state.inodes, self.namespace.state.dentries, self.namespace.state.names):
            table._rows_max = 4
        self.namespace.tree.make_root(0o755, 0, 0)

    def find(self, path: tuple[bytes, ...]) -> Ino:
        ino = ROOT_INO
        for name in path:
            if not self.namespace.tree.inode(ino).is_dir:
                raise PosixError(errno.ENOTDIR)
            child = self.namespace.tree.lookup(ino, name)
            if child is None:
                raise PosixError(errno.ENOENT)
            ino = child.ino
        return ino

    def parent(self, path: tuple[bytes, ...]) -> Ino:
        ino = self.find(path[:-1])
        if not self.namespace.tree.inode(ino).is_dir:
            raise PosixError(errno.ENOTDIR)
        return ino

    def apply(self, op: str, *arguments: object) -> None:
        tree = self.namespace.tree
        match op, arguments:
            case "create", (path,):
                tree.create(self.parent(path), path[-1], stat.S_IFREG | 0o644, 0, 0)
            case "mkdir", (path,):
                tree.create(self.parent(path), path[-1], stat.S_IFDIR | 0o755, 0, 0)
            case "unlink", (path,):
                tree.unlink(self.parent(path), path[-1])
            case "rmdir", (path,):
                tree.rmdir(self.parent(path), path[-1])
            case "link", (source, target):
                tree.link(self.find(source), self.parent(target), target[-1])
            case "rename", (source, target, flags):
                here, there = self.parent(source), self.parent(target)
                tree.rename(here, source[-1], there, target[-1], flags)
            case "supersede", (path,):
                ino = self.find(path)
                if not tree.inode(ino).is_dir:
                    tree.supersede(ino)

    async def commit(self, *, close: bool) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.namespace.state.run)
            await self.namespace.state.sync()
            await self.namespace.state.flush()
            if close:
                self.namespace.state.close_soon()
            else:
                nursery.cancel_scope.cancel()
        if close:
            self.namespace.state.close()

    def tree(self, ino: Ino = ROOT_INO) -> dict[bytes, object]:
        entries: dict[bytes, object] = {}
        after = 0
        while page := self.namespace.tree.readdir(ino, after, 2):
            for position, name, inode in page:
                assert position > after, "positions grow"
                assert name not in entries, "each entry exactly once"
                after = position
                assert self.namespace.tree.lookup(ino, name) == inode
                entries[name] = (inode.nlink, self.tree(inode.ino)) if inode.is_dir else inode.nlink
        return entries


def model_tree(node: Node) -> dict[bytes, object]:
    assert node.children is not None
    return {
        name: child.nlink if child.children is None else (child.nlink, model_tree(child))
        for name, child in node.children.items()
    }


def apply_to_model(model: Model, op: str, *arguments: object) -> None:
    match op, arguments:
        case "create", (path,):
            model.make(path, Node())
        case "mkdir", (path,):
            model.make(path, Node({}))
        case "unlink", (path,):
            model.remove(path, directory=False)
        case "rmdir", (path,):
            model.remove(path, directory=True)
        case "link", (source, target):
            model.link(source, target)
        case "rename", (source, target, flags):
            model.rename(source, target, flags)
        case "supersede", (path,):
            model.find(path)


def answer(apply: Callable[..., None], *arguments: object) -> int:
    """The errno of a call, 0 for none."""
    try:
        apply(*arguments)
    except PosixError as error:
        return error.errno
    return 0


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(OPS, min_size=1, max_size=40))
def test_the_namespace_answers_as_a_plain_tree_does(ops: list[tuple[object, ...]]) -> None:
    model = Model()
    with tempfile.TemporaryDirectory() as directory:
        subject = Subject(Path(directory) / "namespace.sqlite")

        async def run() -> None:
            for op, *arguments in ops:
                if op in {"commit", "restart"}:
                    await subject.commit(close=op == "restart")
                    if op == "restart":
                        subject.open()
                    assert subject.tree() == model_tree(model.root)
                    continue
                wanted = answer(apply_to_model, model, op, *arguments)
                assert answer(subject.apply, op, *arguments) == wanted, (op, arguments)
            assert subject.tree() == model_tree(model.root)
            assert subject.namespace.tree.inode(ROOT_INO).nlink == model.root.nlink
            await subject.commit(close=True)

        trio.run(run)


def test_a_readdir_in_progress_shows_each_stable_entry_exactly_once(tmp_path: Path) -> None:
    subject = Subject(tmp_path / "namespace.sqlite")

    async def run() -> None:
        tree = subject.namespace.tree
        stable = [b"stable%03d" % number for number in range(200)]
        for name in stable:
            tree.create(ROOT_INO, name, stat.S_IFREG | 0o644, 0, 0)
        seen: list[bytes] = []
        after, step = 0, 0
        while page := tree.readdir(ROOT_INO, after, 7):
            seen.extend(name for _, name, _ in page)
            after = page[-1][0]
            step += 1
            with contextlib.suppress(PosixError):
                tree.create(ROOT_INO, b"new%03d" % step, stat.S_IFREG | 0o644, 0, 0)
                tree.unlink(ROOT_INO, b"new%03d" % (step - 2))
            tree.rename(ROOT_INO, b"new%03d" % step, ROOT_INO, stable[step])
            if step % 5 == 0:
                await subject.commit(close=False)
        assert sorted(name for name in seen if name.startswith(b"stable")) == stable
        assert len(set(seen)) == len(seen)

    trio.run(run)


def test_inode_numbers_are_never_used_again(tmp_path: Path) -> None:
    subject = Subject(tmp_path / "namespace.sqlite")
    used: set[int] = set()

    async def run() -> None:
        for _ in range(3):
            for number in range(5):
                inode = subject.namespace.tree.create(ROOT_INO, b"%d" % number, stat.S_IFREG, 0, 0)
                assert inode.ino not in used
                used.add(inode.ino)
                subject.namespace.tree.unlink(ROOT_INO, b"%d" % number)
                subject.namespace.tree.reap(inode.ino)
            await subject.commit(close=True)
            subject.open()

    trio.run(run)


@pytest.mark.parametrize("depth", [1, 3])
def test_renaming_a_directory_moves_the_keys_of_all_below_it(tmp_path: Path, depth: int) -> None:
    tree = Subject(tmp_path / "namespace.sqlite").namespace.tree
    parent = ROOT_INO
    for number in range(depth):
        parent = tree.create(parent, b"d%d" % number, stat.S_IFDIR, 0, 0).ino
    tree.create(parent, b"f", stat.S_IFREG, 0, 0)
    tree.rename(ROOT_INO, b"d0", ROOT_INO, b"e")
    assert tree.key_of(parent, b"f") == "/".join(["e", *(f"d{number}" for number in range(1, depth)), "f"])


def test_a_name_that_is_replaced_before_it_was_committed_stays_in_the_listing(tmp_path: Path) -> None:
    subject = Subject(tmp_path / "namespace.sqlite")
    for name in (b"a", b"b"):
        subject.apply("create", (name,))
    subject.apply("rename", (b"a",), (b"b",), 0)
    assert list(subject.tree()) == [b"b"]
    assert not subject.namespace.tree.is_empty(ROOT_INO)


def test_the_name_of_the_reserved_prefix_cannot_be_made(tmp_path: Path) -> None:
    subject = Subject(tmp_path / "namespace.sqlite")
    subject.apply("create", (b"a",))
    for op in (("create", (b".ckptfs",)), ("mkdir", (b".ckptfs",)), ("rename", (b"a",), (b".ckptfs",), 0)):
        with pytest.raises(PosixError) as raised:
            subject.apply(*op)
        assert raised.value.errno == errno.EPERM
    subject.apply("mkdir", (b"d",))
    subject.apply("mkdir", (b"d", b".ckptfs"))
