"""Multipart uploads of the ``file://`` store: one directory ``.ckptfs/tmp/up-ID`` each, with a file per part.

What a crash leaves: a directory with its ``begun`` file is an upload, which can be continued, completed or aborted by
any process. One without is being begun or was being removed; nobody can name it, and it is removed a day later.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from ckptfs.errors import ObjectNotFoundError, StoreRejectedError
from ckptfs.objectstore.base import Part, Upload
from ckptfs.objectstore.file_io import FileTree, copy_all, fsync_path, write_all
from ckptfs.objectstore.file_meta import etag_of
from ckptfs.types import Key

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ckptfs.objectstore.base import Body

_ABANDONED_NS = 86_400 * 1_000_000_000


@dataclass(frozen=True, slots=True)
class _Begun:
    """Content of the file ``begun``."""

    key: str
    begun_ns: int
    metadata: Mapping[str, str]


class FileUploads:
    """The uploads of one tree. Every method blocks on the disk."""

    def __init__(self, tree: FileTree) -> None:
        self._tree = tree

    def begin(self, upload: Upload, metadata: Mapping[str, str]) -> None:
        """Make the upload durable."""
        directory = self._directory(upload.upload_id)
        os.mkdir(directory)
        begun = _Begun(upload.key, upload.begun_ns, dict(metadata))
        # In two steps, so that a "begun" is never half there.
        fd = os.open(f"{directory}/new", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            write_all(fd, json.dumps(asdict(begun)).encode())
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(f"{directory}/new", f"{directory}/begun")
        fsync_path(directory)
        fsync_path(self._tree.own)

    def put_part(self, upload: Upload, number: int, body: Body, name: str, mtime_ns: int) -> Part:
        """Take part ``number``, durably, in the place of an earlier one.

        ``name`` and ``mtime_ns`` were never used before.
        """
        self._begun(upload)
        directory = self._directory(upload.upload_id)
        new = f"{directory}/new-{name}"
        try:
            fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            try:
                write_all(fd, body)
                os.utime(fd, ns=(mtime_ns, mtime_ns))
                os.fsync(fd)
                os.rename(new, self._part(upload, number))
                status = os.fstat(fd)
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(new)
                raise
            finally:
                os.close(fd)
            fsync_path(directory)
        except FileNotFoundError as e:
            raise _missing(upload) from e
        return Part(number, etag_of(status), status.st_size)

    @contextlib.contextmanager
    def owned(self, upload: Upload) -> Iterator[Mapping[str, str]]:
        """Metadata of the upload, while no other process completes or aborts it.

        Raises:
            ObjectNotFoundError: there is no such upload (any more).
        """
        try:
            fd = os.open(f"{self._directory(upload.upload_id)}/begun", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as e:
            raise _missing(upload) from e
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            if os.fstat(fd).st_nlink == 0:
                raise _missing(upload)
            yield self._begun(upload)
        finally:
            os.close(fd)

    def concatenate(self, upload: Upload, parts: Sequence[Part], target: int) -> None:
        """Append the parts to the file ``target``.

        Raises:
            StoreRejectedError: a part is not the one that was sent.
        """
        for part in parts:
            wrong = StoreRejectedError(f"part {part.number} of {upload.key!r} is not the one that was sent")
            try:
                fd = os.open(self._part(upload, part.number), os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError as e:
                raise wrong from e
            try:
                status = os.fstat(fd)
                if etag_of(status) != part.etag:
                    raise wrong
                copy_all(fd, target, status.st_size)
            finally:
                os.close(fd)

    def remove(self, upload: Upload) -> None:
        """Remove the upload and its parts.

        With "begun" gone first, it is no upload any more. Returns too when it is gone.
        """
        directory = self._directory(upload.upload_id)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{directory}/begun")
        _remove_tree(directory)

    def all(self) -> list[Upload]:
        """Every upload, in order of key, then of beginning."""
        uploads = []
        for upload_id in self._ids():
            begun = self._read(upload_id)
            if begun is not None:
                uploads.append(Upload(Key(begun.key), upload_id, begun.begun_ns))
        return sorted(uploads, key=lambda upload: (os.fsencode(upload.key), upload.begun_ns))

    def collect(self, now_ns: int) -> None:
        """Remove the directories that a crash left without their "begun"."""
        for upload_id in self._ids():
            directory = self._directory(upload_id)
            try:
                age_ns = now_ns - os.stat(directory).st_mtime_ns
            except FileNotFoundError:
                continue
            if self._read(upload_id) is None and age_ns > _ABANDONED_NS:
                _remove_tree(directory)

    def _begun(self, upload: Upload) -> Mapping[str, str]:
        begun = self._read(upload.upload_id)
        if begun is None or begun.key != upload.key:
            raise _missing(upload)
        return begun.metadata

    def _read(self, upload_id: str) -> _Begun | None:
        try:
            with open(f"{self._directory(upload_id)}/begun", "rb") as file:
                return _Begun(**json.load(file))
        except FileNotFoundError:
            return None

    def _ids(self) -> list[str]:
        try:
            with os.scandir(self._tree.own) as entries:
                return [entry.name[3:] for entry in entries if entry.name.startswith("up-")]
        except FileNotFoundError:
            return []

    def _directory(self, upload_id: str) -> str:
        assert "/" not in upload_id, f"not an upload id of this store: {upload_id!r}"
        return f"{self._tree.own}/up-{upload_id}"

    def _part(self, upload: Upload, number: int) -> str:
        return f"{self._directory(upload.upload_id)}/part-{number:05d}"


def _missing(upload: Upload) -> ObjectNotFoundError:
    return ObjectNotFoundError(f"no upload {upload.upload_id!r} of {upload.key!r}")


def _remove_tree(directory: str) -> None:
    """Remove ``directory``, also while a straggler still adds a part to it."""
    while True:
        try:
            shutil.rmtree(directory)
        except FileNotFoundError:
            if not os.path.lexists(directory):
                return
        except OSError as e:
            if e.errno != errno.ENOTEMPTY:
                raise
        else:
            return
