"""One mount.

The parts put together from settings, run until the mount is gone, and taken apart without losing anything.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import shutil
from typing import TYPE_CHECKING

import trio

from ckptfs.admin import ControlServer, stop_on_signals
from ckptfs.admin.mounts import unmount
from ckptfs.admin.registry import socket_path
from ckptfs.cache import CacheLimits, Evictor, Fetcher
from ckptfs.disk.local import LocalDisk
from ckptfs.errors import NotMountedError, UsageError
from ckptfs.fuse.session import Pyfuse3Session
from ckptfs.metrics import Metrics
from ckptfs.namespace import Namespace
from ckptfs.objectstore.url import open_store, parse_store_url
from ckptfs.publish import Publisher, PublishLimits
from ckptfs.recovery import Report, recover
from ckptfs.staging import Staging
from ckptfs.staging.space import make_reserve_file, release_reserve_file
from ckptfs.types import ROOT_INO, Key
from ckptfs.vfs import Vfs, VfsOptions
from ckptfs.vfs.listing import ForeignAttributes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ckptfs.env import Env
    from ckptfs.objectstore.base import ObjectStore
    from ckptfs.settings import Settings

SETTLE_S = 60.0
"""How long a session that ended waits for seals that closes have begun."""

CACHE_FRACTION = 0.5
"""How much of the disk clean bytes may take when no ``--cache-size`` was given: the rest is for staging."""

M_MMAP_THRESHOLD = -3
"""mallopt(3)."""
LARGE_BUFFER_BYTES = 2 << 20

IDLE_REQUESTS_MAX = 4
"""Requests between two looks from which the mount counts as busy."""

KERNEL_CACHE_S_MAX = 60.0
"""Longest time that the kernel keeps names and attributes without asking."""

log = logging.getLogger(__name__)


class Mount:
    """One mount and its parts; what the control socket asks (:class:`ckptfs.admin.Service`).

    Args:
        settings: what was asked for.
        env: clock, randomness, threads.
        store: the bucket.
        namespace: opened and recovered.
        staging: files of contents.
        recovered: what recovery found.
    """

    def __init__(
        self,
        settings: Settings,
        env: Env,
        store: ObjectStore,
        namespace: Namespace,
        staging: Staging,
        recovered: Report,
    ) -> None:
        self._settings = settings
        self._env = env
        self.store = store
        self.namespace = namespace
        self.staging = staging
        self._recovered = recovered
        self.metrics = Metrics()
        self.fetcher = Fetcher(env, store, namespace, staging)
        self.vfs = Vfs(
            env,
            namespace,
            staging,
            store,
            self.fetcher,
            VfsOptions(
                close_mode=settings.close_mode,
                refresh_s=settings.refresh_s,
                foreign=ForeignAttributes(settings.uid, settings.gid, settings.file_mode, settings.dir_mode),
                read_only=settings.read_only,
            ),
        )
        self.evictor = Evictor(
            env,
            namespace,
            staging,
            CacheLimits(cache_bytes=settings.cache_size_bytes or _default_cache_bytes(settings.cache_dir)),
            fetcher=self.fetcher,
            in_use=self.vfs.files.in_use,
        )
        self.publisher = Publisher(
            env,
            store,
            namespace,
            staging,
            self.fetcher,
            PublishLimits(part_bytes=settings.part_bytes, upload_count_max=settings.upload_count_max),
            adopt=self.vfs.listing.adopt_object,
            in_use=self.vfs.files.in_use,
        )
        self.publisher.hooks.name_changed = self.vfs.name_changed
        self.publisher.hooks.is_busy = self._is_busy
        self.vfs.on_full(self._make_room)
        self.vfs.files.on_unused = self.evictor.touch
        self._seen_requests = 0
        options = [*settings.fuse_options]
        if settings.allow_other:
            options.append("allow_other")
        if settings.read_only:
            options.append("ro")
        self.session = Pyfuse3Session(
            self.vfs,
            settings.mountpoint,
            store.url,
            options,
            timeout_s=min(settings.refresh_s / 2, KERNEL_CACHE_S_MAX),
        )
        self._ended = trio.Event()

    def _is_busy(self) -> bool:
        """Whether more than a few requests came since this was last asked."""
        seen, self._seen_requests = self._seen_requests, self.session.operations.request_count
        return self._seen_requests - seen > IDLE_REQUESTS_MAX

    def _make_room(self, byte_count: int) -> bool:
        """The disk is full: evict clean bytes; what is being published will be clean soon."""
        return self.evictor.squeeze(byte_count) or self.namespace.bucket.obligation_count > 0

    async def run(self, ready: Callable[[], None]) -> None:
        """Mount, serve until the mount is gone, and end the parts in the order in which they need each other."""
        async with trio.open_nursery() as journal:
            journal.start_soon(self.namespace.state.run)
            try:
                async with trio.open_nursery() as work:
                    await self._serve(work, ready)
                    work.cancel_scope.cancel()
            finally:
                self.namespace.state.close_soon()
        self._ended.set()

    async def _serve(self, work: trio.Nursery, ready: Callable[[], None]) -> None:
        async with trio.open_nursery() as outside:
            await outside.start(stop_on_signals, self)
            await outside.start(
                ControlServer(self, socket_path(self._settings.mountpoint), self._env, self.metrics).run
            )
            await self._env.run_blocking(self.session.mount)
            work.start_soon(self.vfs.run)
            work.start_soon(self.evictor.run)
            if not self._settings.read_only:
                work.start_soon(self.publisher.run)
            work.start_soon(self._env.run_blocking, self.session.read_ahead)
            await self.session.run(ready)
            with trio.move_on_after(SETTLE_S):
                await self.vfs.io.settle()
            self._log_end()
            self._ended.set()
            outside.cancel_scope.cancel()

    def _log_end(self) -> None:
        pending = self.pending()
        if pending["objects"]:
            log.warning(
                "unmounted; %d objects (%d bytes) are not published yet and stay staged for the next mount",
                pending["objects"],
                pending["bytes"],
            )
        else:
            log.info("unmounted; everything is published")

    # --- what can be asked from outside

    def pending(self) -> dict[str, int]:
        """See :class:`ckptfs.admin.Service`."""
        return self.publisher.pending()

    async def drain(self) -> None:
        """See :class:`ckptfs.admin.Service`."""
        if self._settings.read_only:
            await trio.lowlevel.checkpoint()
            return
        self.vfs.core.draining = True
        await self.vfs.io.settle()
        await self.publisher.drained()

    def resume(self) -> None:
        """See :class:`ckptfs.admin.Service`."""
        self.vfs.core.draining = False

    async def stop(self) -> None:
        """See :class:`ckptfs.admin.Service`.

        The unmount is a process of its own, since the kernel first writes dirty pages back through this very loop. A
        mount in use is taken out of the tree; what its users wrote until now is kept.
        """
        if self._ended.is_set():
            return
        if not await self._env.run_blocking(unmount, self._settings.mountpoint):
            log.warning("%s is in use; its users lose it now", self._settings.mountpoint)
            await self._env.run_blocking(lambda: unmount(self._settings.mountpoint, lazy=True))
            self.session.terminate()
        await self._ended.wait()

    async def wait(self, path: bytes, level: str) -> None:
        """See :class:`ckptfs.admin.Service`."""
        if level != "published":
            raise UsageError(f"this mount cannot wait for {level!r}", hint="Wait for --level published.")
        key = await self._find(path)
        await self.vfs.io.settle()
        await self.publisher.published_below(key)

    async def _find(self, path: bytes) -> Key:
        """Key of ``path``; of a directory what the keys below it begin with."""
        ino = ROOT_INO
        key = Key("")
        for name in filter(None, path.split(b"/")):
            found = await self.vfs.names.lookup(ino, name)
            if found is None:
                raise NotMountedError(
                    f"no such file or directory in the mount: {os.fsdecode(path)}", hint="Give a path that exists."
                )
            key = self.namespace.tree.key_of(ino, name) or key
            ino = found.inode.ino
        return Key(f"{key}/") if key and self.namespace.tree.inode(ino).is_dir else key

    def status(self) -> dict[str, object]:
        """See :class:`ckptfs.admin.Service`."""
        state = self.namespace.state
        pending = self.pending()
        failures = dict(self.session.operations.failures)
        return {
            "mountpoint": str(self._settings.mountpoint),
            "store": self.store.url,
            "driver": "pyfuse3",
            "pid": os.getpid(),
            "epoch": 0,
            "cache_dir": str(self._settings.cache_dir),
            "close": self._settings.close_mode.value,
            "read_only": self._settings.read_only,
            "draining": self.vfs.core.draining,
            "states": {
                name: {"count": count, "bytes": size}
                for name, (count, size) in self.namespace.contents.counts().items()
            },
            "pending": pending,
            "watermarks": {
                "committed": state.lsn_committed,
                "synced": state.lsn_durable,
                "published": self.namespace.bucket.published_lsn(),
            },
            "lag_s": self.publisher.lag_s(),
            "open_files": self.vfs.files.count,
            "hidden": self.vfs.listing.hidden(),
            "hidden_samples": list(self.vfs.listing.hidden_samples),
            "conflicts": list(self.publisher.conflicts),
            "torn": self._recovered.torn[:100],
            "failures": failures,
            "metrics": self.metrics.snapshot(),
            "errors": self._errors(),
        }

    def _errors(self) -> list[dict[str, str]]:
        errors = [{"path": key, "message": message} for key, message in self.publisher.errors()]
        errors.extend(
            {"path": path, "message": "faulty: its bytes were lost or damaged"} for path in self._recovered.faulty
        )
        if self.namespace.state.broken is not None:
            errors.append({"path": "", "message": str(self.namespace.state.broken)})
        return errors


def _default_cache_bytes(cache_dir: Path) -> int:
    """How much of its filesystem a cache without a bound of its own may fill. Blocks, shortly; for start-up."""
    space = shutil.disk_usage(cache_dir)
    return int(space.total * CACHE_FRACTION)


def _give_memory_back() -> None:
    """Have the C library return large buffers to the system at once.

    It otherwise learns from the first ones to keep them, and the daemon would look as large as its busiest moment.
    Requests of up to 1 MiB stay on the heap: they come thousands a second.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):  # glibc
        library.mallopt(M_MMAP_THRESHOLD, LARGE_BUFFER_BYTES)


async def serve(settings: Settings, env: Env, on_ready: Callable[[], None]) -> None:
    """Mount as ``settings`` say, call ``on_ready`` when the mount is usable, and return after a clean unmount.

    Raises:
        CkptfsError: it cannot start.
    """
    _give_memory_back()
    # The collector walks all that lives, and a namespace in memory is a million things that never form cycles: have it
    # leave alone what is there now, and look rarely. A sixth of the CPU of small operations.
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)
    store = open_store(parse_store_url(settings.store_url), env)
    try:
        await store.probe()
        namespace, staging, report = await env.run_blocking(_open, settings, env)
        mount = Mount(settings, env, store, namespace, staging, report)
        try:
            await mount.run(on_ready)
        finally:
            with trio.CancelScope(shield=True):
                await env.run_blocking(mount.session.unmount)
                await env.run_blocking(namespace.state.close)
    finally:
        with trio.CancelScope(shield=True):
            await store.aclose()


def _open(settings: Settings, env: Env) -> tuple[Namespace, Staging, Report]:
    """Open and recover what the cache directory holds. Blocks."""
    reserve = settings.cache_dir / "reserve"
    if release_reserve_file(reserve):
        log.warning("the disk of %s is full: the reserve is given up so that the rest can drain", settings.cache_dir)
    staging = Staging(LocalDisk(env), settings.cache_dir / "contents")
    staging.prepare()
    namespace = Namespace(env, settings.cache_dir / "namespace.sqlite")
    namespace.tree.make_root(settings.dir_mode, settings.uid, settings.gid)
    report = recover(namespace, staging, settings.cache_dir / "lost")
    make_reserve_file(reserve)
    return namespace, staging, report
