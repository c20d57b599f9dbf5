"""Contents: whole or not at all, the old one shielded, errors sticky, digests those of the bytes."""

from __future__ import annotations

import errno
import os
import threading
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing
import xxhash
from rig import running

from ckptfs.errors import PosixError
from ckptfs.types import NO_CONTENT, ROOT_INO, CloseMode, ContentState, Key
from ckptfs.vfs import Changes

if TYPE_CHECKING:
    from pathlib import Path

    from rig import Rig

    from ckptfs.namespace.database import Batch
    from ckptfs.types import Ino

BLOCK = 1 << 20


def committed(rig: Rig, ino: Ino) -> bytes | None:
    """What a crash right now would leave in the file."""
    inode = rig.namespace.tree.inode(ino)
    if inode.content == NO_CONTENT:
        return None
    content = rig.namespace.contents.get(inode.content)
    assert content is not None
    return content.data if content.data is not None else rig.staging.path(content.id).read_bytes()


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7])
def test_the_digests_of_a_closed_file_are_those_of_its_bytes(tmp_path: Path, size: int) -> None:
    async def run() -> None:
        data = os.urandom(size)
        async with running(tmp_path) as rig:
            ino = await rig.save(b"f", data)
            inode = rig.namespace.tree.inode(ino)
            content = rig.namespace.contents.get(inode.content)
            assert content is not None
            assert content.state is ContentState.DURABLE
            assert content.size == inode.size == size
            blocks = [data[start : start + BLOCK] for start in range(0, size, BLOCK)]
            assert content.digests == b"".join(xxhash.xxh3_128(block).digest() for block in blocks)
            assert await rig.load(ino) == data
            assert rig.namespace.bucket.obligation(Key("f")) is not None

    trio.run(run)


def test_until_the_new_content_is_closed_the_old_one_is_what_a_crash_leaves(tmp_path: Path, size: int) -> None:
    async def run() -> None:
        old, new = b"o" * size, b"n" * size
        async with running(tmp_path) as rig:
            ino = await rig.save(b"f", old)
            handle = await rig.vfs.io.open(ino, os.O_WRONLY | os.O_TRUNC, 0)
            assert committed(rig, ino) == old
            await rig.vfs.io.write(handle, 0, new)
            assert committed(rig, ino) == old
            await rig.close(handle)
            assert committed(rig, ino) == new
            await rig.vfs.files.remove_dropped()
            assert sum(1 for _ in rig.staging.contents()) == (size > 65_536)

    trio.run(run)


def test_a_reader_keeps_the_old_content_when_a_writer_truncates(tmp_path: Path, size: int) -> None:
    async def run() -> None:
        old, new = b"o" * size, b"n" * size
        async with running(tmp_path) as rig:
            ino = await rig.save(b"f", old)
            await rig.vfs.names.link(ino, ROOT_INO, b"g")
            reader = await rig.vfs.io.open(ino, os.O_RDONLY, 0)
            with pytest.raises(PosixError) as raised:
                await rig.vfs.io.open(ino, os.O_WRONLY | os.O_TRUNC, 0)
            assert raised.value.errno == errno.ESTALE
            found = await rig.vfs.names.lookup(ROOT_INO, b"f")
            assert found is not None
            assert found.inode.ino != ino
            assert found.inode.nlink == 2
            assert committed(rig, found.inode.ino) == old
            writer = await rig.vfs.io.open(found.inode.ino, os.O_WRONLY | os.O_TRUNC, 0)
            await rig.vfs.io.write(writer, 0, new)
            await rig.close(writer)
            assert await rig.vfs.io.read(reader, 0, size) == old
            assert await rig.load(found.inode.ino) == new
            linked = await rig.vfs.names.lookup(ROOT_INO, b"g")
            assert linked is not None
            assert linked.inode.ino == found.inode.ino
            await rig.close(reader)
            rig.vfs.core.forget([(ino, 10)])
            assert rig.namespace.state.inodes.get(ino) is None

    trio.run(run)


def test_a_second_writer_joins_the_content_that_is_being_written(tmp_path: Path, size: int) -> None:
    async def run() -> None:
        async with running(tmp_path) as rig:
            one, ino = await rig.create(b"f")
            await rig.vfs.io.write(one, 0, b"a" * size)
            other = await rig.vfs.io.open(ino, os.O_WRONLY, 0)
            await rig.vfs.io.write(other, size, b"b" * size)
            await rig.close(one)
            assert rig.namespace.bucket.obligation(Key("f")) is None, "only the last close publishes"
            await rig.vfs.io.write(other, 2 * size, b"c")
            await rig.close(other)
            assert await rig.load(ino) == b"a" * size + b"b" * size + b"c"
            assert rig.namespace.bucket.obligation(Key("f")) is not None

    trio.run(run)


def test_a_content_that_is_to_be_published_is_copied_before_it_is_changed(tmp_path: Path, size: int) -> None:
    async def run() -> None:
        async with running(tmp_path) as rig:
            ino = await rig.save(b"f", b"o" * size)
            obliged = rig.namespace.tree.inode(ino).content
            handle = await rig.vfs.io.open(ino, os.O_RDWR, 0)
            await rig.vfs.io.write(handle, 10, b"new")
            assert committed(rig, ino) == b"o" * size
            assert rig.namespace.tree.inode(ino).content == obliged
            await rig.close(handle)
            assert await rig.load(ino) == b"o" * 10 + b"new" + b"o" * (size - 13)
            assert rig.namespace.contents.get(obliged) is None

    trio.run(run)


def test_fsync_commits_what_is_written_and_the_writer_goes_on(tmp_path: Path, size: int) -> None:
    async def run() -> None:
        async with running(tmp_path) as rig:
            handle, ino = await rig.create(b"f")
            await rig.vfs.io.write(handle, 0, b"a" * size)
            assert committed(rig, ino) is None
            await rig.vfs.io.fsync(handle)
            assert committed(rig, ino) == b"a" * size
            assert rig.namespace.state.lsn_durable == rig.namespace.state.lsn
            await rig.vfs.io.write(handle, size, b"b" * size)
            await rig.close(handle)
            assert await rig.load(ino) == b"a" * size + b"b" * size

    trio.run(run)


def test_with_close_async_a_close_waits_for_nothing_and_the_file_is_sealed_soon(tmp_path: Path, size: int) -> None:
    async def run() -> None:
        async with running(tmp_path, CloseMode.ASYNC) as rig:
            durable = rig.namespace.state.lsn_durable
            ino = await rig.save(b"f", b"a" * size)
            assert await rig.load(ino) == b"a" * size
            await rig.vfs.io.settle()
            content = rig.namespace.contents.get(rig.namespace.tree.inode(ino).content)
            assert content is not None
            assert content.state is ContentState.SEALED
            assert rig.namespace.state.lsn_durable == durable

    trio.run(run)


def test_after_a_failed_fsync_a_content_is_never_trusted_again(tmp_path: Path) -> None:
    """DUR-4: the kernel reports a failed write-back once; a second fsync that succeeds proves nothing."""

    async def run() -> None:
        async with running(tmp_path) as rig:
            handle, ino = await rig.create(b"f")
            await rig.vfs.io.write(handle, 0, bytes(300_000))
            rig.disk.errors["fsync"] = errno.EIO
            with pytest.raises(OSError, match="fsync"):
                await rig.vfs.io.fsync(handle)
            rig.disk.errors.clear()
            with pytest.raises(OSError, match="fsync"):
                await rig.vfs.io.fsync(handle)
            with pytest.raises(OSError, match="fsync"):
                await rig.close(handle)
            assert rig.vfs.xattrs.get(ino, b"user.ckptfs.state") == b"faulty"
            assert b"fsync" in rig.vfs.xattrs.get(ino, b"user.ckptfs.error")
            assert rig.namespace.bucket.obligation(Key("f")) is None

    trio.run(run)


def test_a_full_disk_fails_the_writer_and_leaves_the_older_content(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path) as rig:
            ino = await rig.save(b"f", b"old")
            obliged = rig.namespace.tree.inode(ino).content
            handle = await rig.vfs.io.open(ino, os.O_WRONLY | os.O_TRUNC, 0)
            rig.disk.errors["pwrite"] = errno.ENOSPC
            with pytest.raises(OSError, match="pwrite"):
                await rig.vfs.io.write(handle, 0, bytes(300_000))
            rig.disk.errors.clear()
            with pytest.raises(OSError, match="pwrite"):
                await rig.close(handle)
            assert rig.namespace.tree.inode(ino).content == obliged
            assert await rig.load(ino) == b"old"
            await rig.vfs.files.remove_dropped()
            assert list(rig.staging.contents()) == []

    trio.run(run)


def test_a_full_disk_leaves_a_new_file_marked_and_unpublished_and_its_space_comes_back(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path) as rig:
            handle, ino = await rig.create(b"f")
            await rig.vfs.io.write(handle, 0, bytes(300_000))
            rig.disk.errors["pwrite"] = errno.ENOSPC
            with pytest.raises(OSError, match="pwrite"):
                await rig.vfs.io.write(handle, 300_000, bytes(300_000))
            rig.disk.errors.clear()
            with pytest.raises(OSError, match="pwrite"):
                await rig.close(handle)
            assert rig.vfs.xattrs.get(ino, b"user.ckptfs.state") == b"faulty"
            assert rig.namespace.bucket.obligation(Key("f")) is None
            await rig.vfs.names.unlink(ROOT_INO, b"f")
            rig.vfs.core.forget([(ino, 10)])
            await rig.vfs.files.remove_dropped()
            assert list(rig.staging.contents()) == []

    trio.run(run)


def test_truncating_cuts_and_extends_with_zeros(tmp_path: Path, size: int) -> None:
    async def run() -> None:
        async with running(tmp_path) as rig:
            ino = await rig.save(b"f", b"a" * size)
            await rig.vfs.io.setattr(ino, Changes(size=size // 2))
            assert await rig.load(ino) == b"a" * (size // 2)
            await rig.vfs.io.setattr(ino, Changes(size=size))
            assert await rig.load(ino) == b"a" * (size // 2) + bytes(size - size // 2)
            await rig.vfs.io.setattr(ino, Changes(size=200_000))
            assert (await rig.load(ino))[-1000:] == bytes(1000)
            await rig.vfs.io.setattr(ino, Changes(size=0))
            assert await rig.load(ino) == b""
            assert rig.vfs.files.count == 0

    trio.run(run)


def test_an_unlinked_file_is_readable_to_the_last_close_and_then_gone(tmp_path: Path, size: int) -> None:
    async def run() -> None:
        async with running(tmp_path) as rig:
            handle, ino = await rig.create(b"f")
            await rig.vfs.io.write(handle, 0, b"a" * size)
            await rig.vfs.names.unlink(ROOT_INO, b"f")
            await rig.vfs.io.write(handle, size, b"b")
            assert await rig.vfs.io.read(handle, 0, 2 * size) == b"a" * size + b"b"
            await rig.close(handle)
            rig.vfs.core.forget([(ino, 10)])
            assert rig.namespace.state.inodes.get(ino) is None
            await rig.vfs.files.remove_dropped()
            assert list(rig.staging.contents()) == []
            assert rig.namespace.bucket.obligation_count == 0

    trio.run(run)


def test_renaming_an_open_dirty_file_makes_its_bytes_durable_before_the_name_flips(tmp_path: Path, size: int) -> None:
    async def run() -> None:
        async with running(tmp_path) as rig:
            await rig.save(b"f", b"old")
            handle, ino = await rig.create(b"t")
            await rig.vfs.io.write(handle, 0, b"a" * size)
            await rig.vfs.names.rename(ROOT_INO, b"t", ROOT_INO, b"f", 0)
            assert committed(rig, ino) == b"a" * size
            assert rig.namespace.tree.lookup(ROOT_INO, b"f") is rig.namespace.tree.inode(ino)
            await rig.close(handle)
            assert rig.namespace.bucket.obligation(Key("f")) is not None

    trio.run(run)


def test_whoever_is_last_seals_what_others_changed_while_it_was_sealing(tmp_path: Path) -> None:
    """A truncate by name comes and goes while a close waits for the disk: what it left is sealed and published."""

    async def run() -> None:
        async with running(tmp_path) as rig:
            handle, ino = await rig.create(b"f")
            await rig.vfs.io.write(handle, 0, bytes(1000))
            go = threading.Event()
            commit = rig.namespace.state.database.commit

            def stalled(batch: Batch) -> None:
                assert go.wait(30.0)
                commit(batch)

            rig.namespace.state.database.commit = stalled  # type: ignore[method-assign]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(rig.vfs.io.release, handle)
                while not rig.namespace.tree.inode(ino).content:
                    await trio.testing.wait_all_tasks_blocked(0.01)
                await rig.vfs.io.setattr(ino, Changes(size=500))
                go.set()
            content = rig.namespace.contents.get(rig.namespace.tree.inode(ino).content)
            assert content is not None
            assert content.size == 500
            assert content.state is ContentState.DURABLE
            assert rig.namespace.bucket.obligation(Key("f")) is not None
            assert await rig.load(ino) == bytes(500)

    trio.run(run)


def test_the_bytes_of_a_closed_file_change_only_when_the_journal_knows(tmp_path: Path) -> None:
    """A duplicate was closed, so the file is acknowledged; the writer goes on: a crash finds it whole, or as open."""

    async def run() -> None:
        async with running(tmp_path) as rig:
            handle, ino = await rig.create(b"f")
            await rig.vfs.io.write(handle, 0, b"o" * 300_000)
            await rig.vfs.io.flush(handle)
            go = threading.Event()
            commit = rig.namespace.state.database.commit

            def stalled(batch: Batch) -> None:
                assert go.wait(30.0)
                commit(batch)

            rig.namespace.state.database.commit = stalled  # type: ignore[method-assign]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(rig.vfs.io.write, handle, 0, b"n")
                nursery.start_soon(rig.vfs.io.write, handle, 1, b"n")
                await trio.testing.wait_all_tasks_blocked(0.05)
                assert committed(rig, ino) == b"o" * 300_000
                go.set()
            assert committed(rig, ino) == b"nn" + b"o" * 299_998
            found = rig.namespace.state.database.query("SELECT state FROM content")
            assert found == [("open",)], "what a crash would find"
            await rig.close(handle)
            assert await rig.load(ino) == b"nn" + b"o" * 299_998

    trio.run(run)
