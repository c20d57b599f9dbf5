"""Random lives: every operation, lost answers, failures and power cuts; the bucket ends as the namespace is."""

from __future__ import annotations

import random
import shutil
from typing import TYPE_CHECKING

import pytest
import trio
from bucket_world import WatchedStore, World, memory_store, pattern
from test_crash import PowerCut, life_after_kill
from test_moves import Guard

from ckptfs.errors import StoreUnavailableError
from ckptfs.namespace.rows import PLACE_NONE
from ckptfs.namespace.tree import RENAME_EXCHANGE
from ckptfs.types import ContentState

if TYPE_CHECKING:
    from pathlib import Path

DIRECTORIES = ["d0", "d1", "d2"]
NAMES = ["a", "b", "c"]


class Model:
    """What the mount shows, kept apart from it."""

    def __init__(self, world: World, chance: random.Random) -> None:
        self.world = world
        self.chance = chance
        self.directories: set[str] = set()
        self.files: dict[str, list[bytes]] = {}
        self.serial = 0

    async def step(self) -> None:
        kinds = [self.write] * 4 + [self.rename] * 4 + [self.exchange] * 2 + [self.unlink] * 2
        kinds += [self.link, self.mkdir, self.mkdir, self.rename_directory, self.rename_directory]
        kinds += [self.exchange_directories, self.rmdir, self.reclaim, self.reclaim, self.pause, self.pause]
        await self.chance.choice(kinds)()

    def path(self) -> str | None:
        """A path in a directory that exists."""
        directory = self.chance.choice(["", *sorted(self.directories)])
        name = self.chance.choice(NAMES)
        return f"{directory}/{name}" if directory else name

    def file(self) -> str | None:
        return self.chance.choice(sorted(self.files)) if self.files else None

    async def write(self) -> None:
        path = self.path()
        assert path is not None
        self.serial += 1
        data = pattern(self.chance.choice([0, 5, 70_000, 1_500_000]), self.serial) + b"%d" % self.serial
        await self.world.write(path, data)
        if path in self.files:
            self.files[path][0] = data
        else:
            self.files[path] = [data]

    async def rename(self) -> None:
        old, new = self.file(), self.path()
        if old is None or new is None:
            return
        self.world.rename(old, new)
        if self.files.get(old) is not self.files.get(new):
            self.files[new] = self.files.pop(old)

    async def exchange(self) -> None:
        left, right = self.file(), self.file()
        if left is not None and right is not None:
            self.world.rename(left, right, RENAME_EXCHANGE)
            self.files[left], self.files[right] = self.files[right], self.files[left]

    async def unlink(self) -> None:
        path = self.file()
        if path is not None:
            self.world.unlink(path)
            del self.files[path]

    async def link(self) -> None:
        old, new = self.file(), self.path()
        if old is not None and new is not None and new not in self.files:
            self.world.link(old, new)
            self.files[new] = self.files[old]

    async def mkdir(self) -> None:
        path = self.chance.choice(DIRECTORIES)
        if path not in self.directories:
            self.world.mkdir(path)
            self.directories.add(path)

    def _below(self, directory: str) -> dict[str, list[bytes]]:
        return {path: self.files.pop(path) for path in list(self.files) if path.startswith(f"{directory}/")}

    async def rename_directory(self) -> None:
        new = self.chance.choice(DIRECTORIES)
        if self.directories and new not in self.directories:
            old = self.chance.choice(sorted(self.directories))
            self.world.rename(old, new)
            self.directories ^= {old, new}
            self.files |= {new + path[len(old) :]: file for path, file in self._below(old).items()}

    async def exchange_directories(self) -> None:
        if len(self.directories) > 1:
            left, right = self.chance.sample(sorted(self.directories), 2)
            self.world.rename(left, right, RENAME_EXCHANGE)
            below_left, below_right = self._below(left), self._below(right)
            self.files |= {right + path[len(left) :]: file for path, file in below_left.items()}
            self.files |= {left + path[len(right) :]: file for path, file in below_right.items()}

    async def rmdir(self) -> None:
        for directory in sorted(self.directories):
            if not any(path.startswith(f"{directory}/") for path in self.files):
                self.world.tree.rmdir(*self.world.place(directory))
                self.directories.discard(directory)
                return

    async def reclaim(self) -> None:
        await self.world.namespace.state.flush()
        paths = [
            path
            for path in sorted(self.files)
            if (content := self.world.content_of(path)).state is ContentState.PUBLISHED
            and content.place != PLACE_NONE
            and self.world.evictor.is_backed(content)
        ]
        if paths:
            await self.world.reclaim(self.chance.choice(paths))

    async def pause(self) -> None:
        await trio.sleep(self.chance.choice([0, 0.001, 0.005, 0.02]))


def misbehave(store: WatchedStore, chance: random.Random, rate: float) -> None:
    """Calls take time, fail, or lose their answer."""

    async def before(_name: str, _key: str) -> None:
        await trio.sleep(chance.random() * 0.003)
        if chance.random() < rate:
            raise StoreUnavailableError("503")

    store.before = before
    store.lose_answers = lambda _name, _key: chance.random() < rate


async def check(world: World, model: Model) -> None:
    """The bucket, the mount and the model agree."""
    await world.drain()
    wanted = {path: file[0] for path, file in model.files.items()}
    found = await world.objects()
    assert found.keys() == wanted.keys()
    assert found == wanted
    world.store.before = None
    world.store.lose_answers = lambda _name, _key: False
    for path, data in wanted.items():
        assert await world.read(path) == data
    assert world.publisher.conflicts == []
    assert not [path for path in wanted if world.content_of(path).state is ContentState.FAULTY]
    while await world.store.list_uploads() or world.bucket.uploads():
        await world.namespace.state.flush()
        await trio.sleep(0.01)


@pytest.mark.parametrize("seed", range(25))
def test_random_operations(seed: int, tmp_path: Path) -> None:
    async def main() -> None:
        chance = random.Random(seed)
        store = memory_store()
        async with World(tmp_path / "cache", store).life() as world:
            model = Model(world, chance)
            misbehave(store, random.Random(seed + 1), chance.choice([0.0, 0.1, 0.3]))
            for _ in range(80):
                await model.step()
            await check(world, model)
            guard = Guard(world, keeps=False)
            await guard.watch()
            for _ in range(20):
                await model.rename_directory()
                await model.exchange()
                await model.rename()
                await model.pause()
            await check(world, model)

    trio.run(main)


@pytest.mark.parametrize("seed", range(25))
def test_random_operations_with_power_cuts(seed: int, tmp_path: Path) -> None:
    """Each life is cut after its operations were synced, at some moment of their publication."""

    async def main() -> None:
        chance = random.Random(seed)
        store = memory_store()
        world = World(tmp_path / "life", store)
        model = Model(world, chance)
        for life in range(5):
            model.world = world
            store.before = None
            store.lose_answers = lambda _name, _key: False
            with trio.CancelScope() as scope:
                async with world.life(publishing=False), trio.open_nursery() as nursery:
                    nursery.start_soon(world.publisher.run)
                    misbehave(store, random.Random(seed + life), chance.choice([0.0, 0.1]))
                    for _ in range(25):
                        await model.step()
                    power = PowerCut(world)
                    await world.namespace.state.sync(world.namespace.state.record("test"))
                    await trio.sleep(chance.random() * 0.1)
                    power.leave(tmp_path / "cut")
                    scope.cancel()
            shutil.rmtree(tmp_path / "life", ignore_errors=True)
            world = life_after_kill(tmp_path / "cut", store, life)
            shutil.rmtree(tmp_path / "cut")
        model.world = world
        async with world.life():
            await check(world, model)

    trio.run(main)
