"""What a file:// store promises beyond the port: plain files, durable, beside other tools and other processes."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import sys
import time
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptfs.env import RealEnv
from ckptfs.errors import (
    BucketNotFoundError,
    ObjectNotFoundError,
    PreconditionError,
    StoreDeniedError,
    StoreError,
    StoreRejectedError,
    StoreUnavailableError,
)
from ckptfs.objectstore import file_list
from ckptfs.objectstore.base import ABSENT, Condition
from ckptfs.objectstore.file import FileObjectStore
from ckptfs.objectstore.file_io import error_of
from ckptfs.types import Key

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from ckptfs.objectstore.base import ObjectInfo

KEY = Key("dir/key")


def store_at(path: Path) -> FileObjectStore:
    return FileObjectStore(str(path), RealEnv())


def run(main: Callable[[], Awaitable[Any]]) -> Any:
    async def bounded() -> Any:
        with trio.fail_after(100):
            return await main()

    return trio.run(bounded)


async def content(store: FileObjectStore, info: ObjectInfo) -> bytes:
    buffer = bytearray(info.size)
    await store.get_range(info.key, 0, memoryview(buffer), etag=info.etag)
    return bytes(buffer)


async def keys(store: FileObjectStore, prefix: str = "", *, limit: int = 1000, delimiter: str = "") -> list[str]:
    found: list[str] = []
    token = None
    while True:
        page = await store.list_page(prefix, token=token, limit=limit, delimiter=delimiter)
        found += [info.key for info in page.objects] + list(page.prefixes)
        token = page.next_token
        if token is None:
            return found


def test_objects_are_plain_files(tmp_path: Path) -> None:
    async def main() -> None:
        await store_at(tmp_path).put(Key("a/b c"), b"bytes")

    run(main)
    assert (tmp_path / "a" / "b c").read_bytes() == b"bytes"
    assert sorted(p.name for p in tmp_path.iterdir()) == [".ckptfs", "a"]


def test_files_of_other_tools_are_objects(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "model.pt").write_bytes(b"weights")
    shutil.copy2(tmp_path / "run" / "model.pt", tmp_path / "copied")

    async def main() -> None:
        store = store_at(tmp_path)
        assert await keys(store) == ["copied", "run/model.pt"]
        info = await store.head(Key("run/model.pt"))
        assert info.metadata == {}
        assert await content(store, info) == b"weights"
        assert (await store_at(tmp_path).head(info.key)).etag == info.etag
        replaced = await store.put(info.key, b"ours", condition=Condition(etag=info.etag))
        assert replaced.etag != info.etag

    run(main)
    assert not (tmp_path / ".ckptfs/tmp/meta").exists()


def test_reading_and_listing_write_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a")

    async def main() -> None:
        store = store_at(tmp_path)
        await store.probe()
        await content(store, await store.head(Key("a")))
        await keys(store)
        assert list(await store.list_uploads()) == []

    run(main)
    assert os.listdir(tmp_path) == ["a"]


def test_generations_within_one_tick_of_the_clock_have_different_etags(tmp_path: Path) -> None:
    async def main() -> None:
        store = store_at(tmp_path)
        seen: dict[str, bytes] = {}
        for n in range(300):
            body = b"%08d" % n
            info = await store.put(KEY, body)
            assert info.etag not in seen, (body, seen[info.etag])
            seen[info.etag] = body
            if n % 3 == 0:  # ext4 gives the next file the inode number that this makes free
                await store.delete(KEY)

    run(main)


def test_a_change_by_another_tool_within_one_tick_is_another_etag(tmp_path: Path) -> None:
    path = tmp_path / "hot"

    async def main() -> None:
        store = store_at(tmp_path)
        for n in range(40):
            path.write_bytes(b"%04d" % n)
            # Through both ways of learning an etag, and changed the moment it is known.
            listed = (await store.list_page()).objects[0] if n % 2 else await store.head(Key("hot"))
            with path.open("r+b") as file:
                file.write(b"%04d" % (n + 5000))
            with pytest.raises(PreconditionError):
                await store.get_range(Key("hot"), 0, memoryview(bytearray(4)), etag=listed.etag)
            assert (await store.head(Key("hot"))).etag != listed.etag

    run(main)


def test_our_own_object_changed_in_place_is_another_generation(tmp_path: Path) -> None:
    async def main() -> None:
        store = store_at(tmp_path)
        for _ in range(20):
            info = await store.put(KEY, b"ours", metadata={"of": "ours"})
            with (tmp_path / KEY).open("r+b") as file:
                file.write(b"them")
            head = await store.head(KEY)
            assert head.etag != info.etag
            assert head.metadata == {}, "the metadata was of other bytes"

    run(main)


def test_a_file_that_is_changed_all_the_time_is_listed_with_an_etag_nobody_finds_again(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"")
    writer = subprocess.Popen(
        [sys.executable, "-c", "import sys\nf=open(sys.argv[1],'ab',0)\nwhile True: f.write(b'x')", str(path)]
    )

    async def main() -> None:
        store = store_at(tmp_path)
        for info in [*(await store.list_page()).objects, await store.head(Key("log"))]:
            with pytest.raises(PreconditionError):
                await store.get_range(info.key, 0, memoryview(bytearray(1)), etag=info.etag)

    try:
        deadline_s = time.monotonic() + 20
        while path.stat().st_size == 0:
            assert time.monotonic() < deadline_s, "the writer does not write"
            time.sleep(0.01)
        run(main)
    finally:
        writer.kill()
        writer.wait()


def test_a_reader_of_the_old_generation_gets_it_whole_or_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        store = store_at(tmp_path)
        size = 8 << 20
        old = await store.put(KEY, b"o" * size)

        async def replace() -> None:
            for _ in range(5):
                await store.put(KEY, b"n" * size)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(replace)
            for _ in range(20):
                buffer = bytearray(size)
                try:
                    await store.get_range(KEY, 0, memoryview(buffer), etag=old.etag)
                except PreconditionError:
                    break
                assert buffer == b"o" * size

    run(main)


def test_what_the_store_keeps_for_itself_is_in_no_listing_and_no_key(tmp_path: Path) -> None:
    async def main() -> None:
        store = store_at(tmp_path)
        await store.put(Key(".ckptfs/lease"), b"x")
        upload = await store.begin_upload(Key("big"))
        await store.put_part(upload, 1, b"part")
        assert await keys(store) == [".ckptfs/lease"]
        assert await keys(store, ".ckptfs/") == [".ckptfs/lease"]
        assert await keys(store, ".ckptfs/", delimiter="/") == [".ckptfs/lease"]
        assert await keys(store, ".ckptfs/tmp/") == []
        await store.delete(Key(".ckptfs/lease"))
        assert await keys(store, delimiter="/") == []
        for key in (".ckptfs/tmp/x", ".ckptfs/tmp/lock", ".ckptfs/tmp"):
            with pytest.raises(StoreRejectedError):
                await store.put(Key(key), b"x")
            with pytest.raises(ObjectNotFoundError):
                await store.head(Key(key))

    run(main)


def test_what_a_crash_left_is_removed_and_what_lives_is_not(tmp_path: Path) -> None:
    own = tmp_path / ".ckptfs/tmp"
    own.mkdir(parents=True)
    (own / "put-dead").write_bytes(b"x")
    (own / "up-dead").mkdir()
    os.utime(own / "up-dead", (1, 1))
    (own / "up-young").mkdir()
    with (own / "put-alive").open("wb") as alive:
        fcntl.flock(alive, fcntl.LOCK_EX)

        async def main() -> None:
            await store_at(tmp_path).put(KEY, b"x")

        run(main)
        assert sorted(os.listdir(own)) == ["lock", "put-alive", "up-young"]


def test_a_put_that_fails_leaves_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        store = store_at(tmp_path)
        await store.put(Key("a/b"), b"x")
        with pytest.raises(StoreRejectedError):
            await store.put(Key("a"), b"x")
        with pytest.raises(PreconditionError):
            await store.put(Key("a/b"), b"y", condition=ABSENT)
        assert os.listdir(tmp_path / ".ckptfs/tmp") == ["lock"]

    run(main)


def test_an_empty_directory_gives_way_to_an_object(tmp_path: Path) -> None:
    (tmp_path / "name").mkdir()

    async def main() -> None:
        assert await keys(store_at(tmp_path), delimiter="/") == []
        await store_at(tmp_path).put(Key("name"), b"x")

    run(main)
    assert (tmp_path / "name").read_bytes() == b"x"


def test_symlinks_lead_nowhere(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "sub").mkdir(parents=True)
    (outside / "secret").write_bytes(b"secret")
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(outside)
    (root / "file").symlink_to(outside / "secret")

    async def main() -> None:
        store = store_at(root)
        for key in ("link/secret", "file", "link"):
            with pytest.raises(ObjectNotFoundError):
                await store.head(Key(key))
            with pytest.raises(StoreRejectedError):
                await store.put(Key(key), b"x")
        await store.delete(Key("link/secret"))
        for prefix in ("", "link/", "link/s"):
            assert await keys(store, prefix) == []
            assert await keys(store, prefix, delimiter="/") == []

    run(main)
    assert (outside / "secret").read_bytes() == b"secret"


def test_the_store_directory_may_be_a_symlink(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")

    async def main() -> None:
        store = store_at(tmp_path / "link")
        await store.put(KEY, b"x")
        assert await keys(store) == [KEY]

    run(main)
    assert (tmp_path / "real" / KEY).read_bytes() == b"x"


def test_a_missing_directory_is_a_missing_bucket(tmp_path: Path) -> None:
    async def main() -> None:
        store = store_at(tmp_path / "none")
        for call in (store.probe(), store.put(KEY, b""), store.list_page(), store.begin_upload(KEY), store.head(KEY)):
            with pytest.raises(BucketNotFoundError) as caught:
                await call
            assert "mkdir" in caught.value.hint

    run(main)
    assert not (tmp_path / "none").exists()


def test_names_that_are_no_text_are_kept(tmp_path: Path) -> None:
    raw = os.fsencode(tmp_path) + b"/\xff\xfe"
    with open(raw, "wb") as file:
        file.write(b"odd")

    async def main() -> None:
        store = store_at(tmp_path)
        (key,) = await keys(store)
        assert os.fsencode(key) == b"\xff\xfe"
        assert await content(store, await store.head(Key(key))) == b"odd"
        await store.put(Key(key), b"ours")

    run(main)
    with open(raw, "rb") as file:
        assert file.read() == b"ours"


def test_bytes_are_synced_before_they_have_a_name_and_the_name_before_the_call_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[tuple[str, int]] = []
    fsync, rename = os.fsync, os.rename

    def spy_fsync(fd: int) -> None:
        fsync(fd)
        events.append(("fsync", os.fstat(fd).st_ino))

    def spy_rename(*args: Any, **kwargs: Any) -> None:
        rename(*args, **kwargs)
        events.append(("rename", 0))

    monkeypatch.setattr(os, "fsync", spy_fsync)
    monkeypatch.setattr(os, "rename", spy_rename)

    async def main() -> None:
        await store_at(tmp_path).put(Key("new/deep/key"), b"x")

    run(main)
    named = events.index(("rename", 0))
    file, parent, deep, root = (os.stat(tmp_path / p).st_ino for p in ("new/deep/key", "new/deep", "new", "."))
    assert ("fsync", file) in events[:named]
    assert ("fsync", parent) in events[named:], "the name"
    assert ("fsync", deep) in events, "the directory of the name"
    assert ("fsync", root) in events, "and its directory"


_ADDER = """
import sys, trio
from ckptfs.env import RealEnv
from ckptfs.errors import PreconditionError
from ckptfs.objectstore.base import Condition
from ckptfs.objectstore.file import FileObjectStore

async def main():
    store = FileObjectStore(sys.argv[1], RealEnv())
    for _ in range(int(sys.argv[2])):
        while True:
            info = await store.head("counter")
            buffer = bytearray(info.size)
            try:
                await store.get_range("counter", 0, memoryview(buffer), etag=info.etag)
                await store.put("counter", b"%d" % (int(buffer) + 1), condition=Condition(etag=info.etag))
                break
            except PreconditionError:
                pass
trio.run(main)
"""


def test_compare_and_swap_holds_among_processes(tmp_path: Path) -> None:
    async def begin() -> None:
        await store_at(tmp_path).put(Key("counter"), b"0")

    run(begin)
    adders = [subprocess.Popen([sys.executable, "-c", _ADDER, str(tmp_path), "25"]) for _ in range(4)]
    assert [adder.wait(100) for adder in adders] == [0] * 4
    assert (tmp_path / "counter").read_bytes() == b"100"


@pytest.mark.parametrize("code", [errno.ENOTSUP, errno.ENOSPC, errno.E2BIG])
def test_metadata_survives_without_xattrs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "setxattr", refuse)
    if code == errno.ENOTSUP:
        monkeypatch.setattr(os, "getxattr", refuse)
    sidecars = tmp_path / ".ckptfs/tmp/meta"

    async def main() -> None:
        store = store_at(tmp_path)
        first = await store.put(KEY, b"1", metadata={"n": "1"})
        assert (await store_at(tmp_path).head(KEY)).metadata == {"n": "1"}
        assert (await store_at(tmp_path).head(KEY)).etag == first.etag
        copied = await store.copy(KEY, Key("copied"), etag=first.etag)
        assert (await store.head(copied.key)).metadata == {"n": "1"}
        await store.put(KEY, b"2", metadata={"n": "2"})
        assert (await store.head(KEY)).metadata == {"n": "2"}
        assert len(os.listdir(sidecars)) == 2, "the one of the replaced generation is gone"
        await store.put(KEY, b"3")
        assert (await store.head(KEY)).metadata == {}
        await store.delete(Key("copied"))
        assert os.listdir(sidecars) == []
        assert await keys(store) == [KEY]

    run(main)


def test_an_xattr_of_another_tool_is_no_metadata(tmp_path: Path) -> None:
    for name, raw in {"a": b"\xff", "b": b"[]", "c": b'{"size":1}', "d": b'{"size":1,"mtime_ns":1,"user":3}'}.items():
        (tmp_path / name).write_bytes(b"x")
        os.setxattr(tmp_path / name, "user.ckptfs.meta", raw)

    async def main() -> None:
        for name in "abcd":
            assert (await store_at(tmp_path).head(Key(name))).metadata == {}

    run(main)


def test_large_objects_are_never_in_memory(tmp_path: Path) -> None:
    async def main() -> None:
        store = store_at(tmp_path)
        part = bytes(16 << 20)
        upload = await store.begin_upload(KEY)
        parts = [await store.put_part(upload, n, part) for n in range(1, 5)]
        tracemalloc.start()
        try:
            info = await store.complete_upload(upload, parts)
            await store.copy(KEY, Key("copied"), etag=info.etag)
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert info.size == 64 << 20
        assert peak_bytes < 1 << 20

    run(main)


NAMES = st.text(st.sampled_from("ab-./0"), min_size=1, max_size=6)


@settings(deadline=None, max_examples=60)
@given(
    st.sets(NAMES, max_size=25), NAMES | st.just(""), st.integers(1, 4), st.integers(1, 5), st.sampled_from(["", "/"])
)
def test_listing_equals_a_sorted_set_of_keys(
    tmp_path_factory: pytest.TempPathFactory, texts: set[str], prefix: str, window: int, limit: int, delimiter: str
) -> None:
    root = tmp_path_factory.mktemp("tree")

    async def main() -> None:
        store = store_at(root)
        held = set()
        for text in sorted(texts):
            if text.startswith("/"):
                continue
            try:
                await store.put(Key(text), b"")
            except StoreRejectedError:
                continue
            held.add(text)
        if not delimiter:
            assert await keys(store, prefix, limit=limit) == sorted(k for k in held if k.startswith(prefix))
            return
        rests = [k[len(prefix) :] for k in held if k.startswith(prefix)]
        expected = {prefix + (rest.partition("/")[0] + "/" if "/" in rest else rest) for rest in rests}
        assert sorted(await keys(store, prefix, limit=limit, delimiter="/")) == sorted(expected)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_list, "WINDOW_NAMES", window)
        run(main)
    shutil.rmtree(root)


def test_more_listings_at_once_than_are_kept_all_come_out_right(tmp_path: Path) -> None:
    for n in range(50):
        (tmp_path / f"{n:02d}").touch()

    async def main() -> None:
        store = store_at(tmp_path)
        found: list[list[str]] = [[] for _ in range(3 * file_list.WALKS_KEPT_MAX)]

        async def walk(into: list[str]) -> None:
            into += await keys(store, limit=3)

        async with trio.open_nursery() as nursery:
            for into in found:
                nursery.start_soon(walk, into)
        assert all(into == [f"{n:02d}" for n in range(50)] for into in found)

    run(main)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errno.EACCES, StoreDeniedError),
        (errno.EROFS, StoreDeniedError),
        (errno.ENOSPC, StoreUnavailableError),
        (errno.EDQUOT, StoreUnavailableError),
        (errno.EIO, StoreUnavailableError),
        (errno.EMFILE, StoreUnavailableError),
        (errno.ENAMETOOLONG, StoreRejectedError),
        (errno.EXDEV, StoreRejectedError),
        (errno.EFBIG, StoreRejectedError),
    ],
)
def test_every_errno_is_of_a_kind(code: int, kind: type[StoreError]) -> None:
    error = error_of(OSError(code, os.strerror(code)), "write 'x'")
    assert type(error) is kind
    assert os.strerror(code) in str(error)
    assert "write 'x'" in str(error)
