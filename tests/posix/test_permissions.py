"""Who may do what: modes, owners, groups, sticky directories, setuid and setgid, umask, as users that are not root."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

import pytest
from fs_support import Child, as_user, errno_of

if TYPE_CHECKING:
    from pathlib import Path

ALICE, BOB, TEAM = 1000, 1001, 2000


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("mode", [0o000, 0o100, 0o200, 0o400, 0o600, 0o640, 0o604, 0o060, 0o006, 0o646, 0o777])
@pytest.mark.parametrize(("user", "groups"), [(ALICE, ()), (BOB, ()), (BOB, (TEAM,))])
def test_mode_bits_decide(here: Path, mode: int, user: int, groups: tuple[int, ...]) -> None:
    """path_resolution(7): the owner's bits for the owner, the group's for a member, else others'."""
    path = here / "f"
    path.write_bytes(b"secret")
    os.chown(path, ALICE, TEAM)
    path.chmod(mode)
    bits = mode >> 6 if user == ALICE else mode >> 3 if TEAM in groups else mode

    def attempt() -> list[int]:
        return [
            errno_of(lambda: os.close(os.open("f", os.O_RDONLY))),
            errno_of(lambda: os.close(os.open("f", os.O_WRONLY))),
            0 if os.access("f", os.X_OK) else errno.EACCES,
            errno_of(lambda: os.truncate("f", 3)),
        ]

    expected = [0 if bits & bit else errno.EACCES for bit in (4, 2, 1, 2)]
    assert as_user(attempt, cwd=here, uid=user, groups=groups) == expected


def test_directory_permissions(here: Path) -> None:
    """Search to pass, read to list, write and search to change entries."""
    inner = here / "d"
    inner.mkdir()
    (inner / "f").write_bytes(b"f")

    def attempt() -> list[int]:
        return [
            errno_of(lambda: os.stat("d/f")),
            errno_of(lambda: os.listdir("d")),
            errno_of(lambda: os.close(os.open("d/new", os.O_CREAT | os.O_WRONLY))),
            errno_of(lambda: os.unlink("d/new")),
        ]

    denied, absent = errno.EACCES, errno.ENOENT
    for mode, expected in {
        0o700: [denied, denied, denied, denied],
        0o701: [0, denied, denied, absent],
        0o704: [denied, 0, denied, denied],
        0o705: [0, 0, denied, absent],
        0o703: [0, denied, 0, 0],
        0o707: [0, 0, 0, 0],
    }.items():
        inner.chmod(mode)
        assert as_user(attempt, cwd=here, uid=ALICE) == expected, oct(mode)


def test_a_directory_without_write_permission(here: Path) -> None:
    """FIELD §3 (Lightning#21800): in a 0555 directory every change fails with EACCES, loudly, and nothing changes."""
    inner = here / "d"
    inner.mkdir()
    (inner / "f").write_bytes(b"kept")
    os.chown(inner, ALICE, ALICE)
    inner.chmod(0o555)

    def attempt() -> list[int]:
        return [
            errno_of(lambda: os.open("d/new", os.O_CREAT | os.O_WRONLY)),
            errno_of(lambda: os.mkdir("d/sub")),
            errno_of(lambda: os.unlink("d/f")),
            errno_of(lambda: os.rename("d/f", "d/g")),
            errno_of(lambda: os.symlink("f", "d/l")),
            errno_of(lambda: os.link("d/f", "d/l")),
        ]

    os.chown(inner / "f", ALICE, ALICE)
    assert as_user(attempt, cwd=here, uid=ALICE) == [errno.EACCES] * 6
    assert os.listdir(inner) == ["f"]


def test_sticky_directories(here: Path) -> None:
    """unlink(2), rename(2): with the sticky bit only the owner of the entry, of the directory, or root removes it."""
    shared = here / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    as_user(lambda: [os.close(os.open(f"tmp/{n}", os.O_CREAT | os.O_WRONLY)) for n in "abc"], cwd=here, uid=ALICE)
    as_user(lambda: os.mkdir("tmp/d", 0o777), cwd=here, uid=ALICE)

    def meddle() -> list[int]:
        os.close(os.open("tmp/mine", os.O_CREAT | os.O_WRONLY))
        return [
            errno_of(lambda: os.unlink("tmp/a")),
            errno_of(lambda: os.rename("tmp/b", "tmp/stolen")),
            errno_of(lambda: os.rename("tmp/mine", "tmp/c")),
            errno_of(lambda: os.rmdir("tmp/d")),
        ]

    refused = as_user(meddle, cwd=here, uid=BOB)
    assert isinstance(refused, list)
    assert all(number in (errno.EPERM, errno.EACCES) for number in refused), refused
    assert sorted(os.listdir(shared)) == ["a", "b", "c", "d", "mine"]
    as_user(lambda: os.unlink("tmp/a"), cwd=here, uid=ALICE)
    os.unlink(shared / "b")
    assert sorted(os.listdir(shared)) == ["c", "d", "mine"]


def test_who_may_chmod_and_chown(here: Path) -> None:
    """The owner changes the mode and gives the group to one of his own; only root gives files away."""
    path = here / "f"
    path.write_bytes(b"")
    os.chown(path, ALICE, ALICE)
    assert as_user(lambda: errno_of(lambda: os.chmod("f", 0o777)), cwd=here, uid=BOB) == errno.EPERM
    assert as_user(lambda: errno_of(lambda: os.chmod("f", 0o640)), cwd=here, uid=ALICE) == 0
    assert as_user(lambda: errno_of(lambda: os.chown("f", BOB, -1)), cwd=here, uid=ALICE) == errno.EPERM
    assert as_user(lambda: errno_of(lambda: os.chown("f", -1, TEAM)), cwd=here, uid=ALICE) == errno.EPERM
    assert as_user(lambda: errno_of(lambda: os.chown("f", -1, TEAM)), cwd=here, uid=ALICE, groups=[TEAM]) == 0
    assert (path.stat().st_uid, path.stat().st_gid, _mode(path)) == (ALICE, TEAM, 0o640)


def test_writing_clears_setuid_and_setgid(here: Path) -> None:
    """write(2), truncate(2): a write by who is not root takes setuid, and setgid of a group-executable file, away."""
    changes = {
        "write": lambda: _overwrite("f"),
        "truncate": lambda: os.truncate("f", 1),
        "truncating open": lambda: os.close(os.open("f", os.O_WRONLY | os.O_TRUNC)),
    }
    path = here / "f"
    path.write_bytes(b"program")
    os.chown(path, ALICE, ALICE)
    for name, change in changes.items():
        path.write_bytes(b"program")
        path.chmod(0o6777)
        as_user(change, cwd=here, uid=BOB)
        assert _mode(path) == 0o777, name
    path.chmod(0o6777)
    _overwrite(path)
    assert _mode(path) == 0o6777, "root keeps them"


def _overwrite(path: Path | str) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, b"evil")
    finally:
        os.close(fd)


def test_chown_clears_setuid_and_setgid(here: Path) -> None:
    """chown(2): setuid and setgid of an executable go; setgid without group execution (mandatory locking) stays."""
    path = here / "f"
    path.write_bytes(b"")
    os.chown(path, ALICE, ALICE)
    path.chmod(0o6755)
    as_user(lambda: os.chown("f", -1, TEAM), cwd=here, uid=ALICE, groups=[TEAM])
    assert _mode(path) == 0o755
    path.chmod(0o6755)
    os.chown(path, BOB, TEAM)
    assert _mode(path) == 0o755


def test_chmod_by_a_non_member_drops_setgid(here: Path) -> None:
    """chmod(2): the setgid bit is only for members of the file's group."""
    path = here / "f"
    path.write_bytes(b"")
    os.chown(path, ALICE, TEAM)
    as_user(lambda: os.chmod("f", 0o2755), cwd=here, uid=ALICE)
    assert _mode(path) == 0o755
    as_user(lambda: os.chmod("f", 0o2755), cwd=here, uid=ALICE, groups=[TEAM])
    assert _mode(path) == 0o2755


def test_setgid_directories_hand_their_group_on(here: Path) -> None:
    """inode(7): what is made in a setgid directory has its group, and a directory its setgid bit too."""
    shared = here / "team"
    shared.mkdir()
    os.chown(shared, 0, TEAM)
    shared.chmod(0o2777)

    def make() -> None:
        os.close(os.open("team/f", os.O_CREAT | os.O_WRONLY, 0o664))
        os.mkdir("team/d", 0o755)
        os.symlink("f", "team/l")

    as_user(make, cwd=here, uid=ALICE)
    assert {(shared / name).lstat().st_gid for name in "fdl"} == {TEAM}
    assert {(shared / name).lstat().st_uid for name in "fdl"} == {ALICE}
    assert _mode(shared / "d") & stat.S_ISGID
    assert not _mode(shared / "f") & stat.S_ISGID
    (here / "plain").mkdir(mode=0o777)
    (here / "plain").chmod(0o777)
    as_user(lambda: os.mkdir("plain/d"), cwd=here, uid=ALICE)
    assert (here / "plain" / "d").stat().st_gid == ALICE


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o027, 0o077, 0o777])
def test_umask(here: Path, umask: int) -> None:
    """umask(2): taken off what open, mkdir and mknod ask for; off nothing else."""

    def make() -> None:
        os.umask(umask)
        os.close(os.open("f", os.O_CREAT | os.O_WRONLY, 0o666))
        os.mkdir("d", 0o777)
        os.mkfifo("p", 0o666)

    Child(make, cwd=here).result()
    assert (_mode(here / "f"), _mode(here / "d"), _mode(here / "p")) == (0o666 & ~umask, 0o777 & ~umask, 0o666 & ~umask)


def test_a_created_file_may_be_written_whatever_its_mode(here: Path) -> None:
    """open(2): the mode is for later opens; the handle that creates may write (safetensors makes 0600, git 0444)."""
    here.chmod(0o777)

    def make() -> bytes:
        fd = os.open("f", os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o000)
        os.write(fd, b"written")
        data = os.pread(fd, 100, 0)
        os.close(fd)
        return data

    assert as_user(make, cwd=here, uid=ALICE) == b"written"
    assert (here / "f").read_bytes() == b"written"
    assert as_user(lambda: errno_of(lambda: os.open("f", os.O_RDONLY)), cwd=here, uid=ALICE) == errno.EACCES


def test_an_open_handle_keeps_its_right(here: Path) -> None:
    """open(2): rights are asked at open; a later chmod does not take the handle away."""
    path = here / "f"
    path.write_bytes(b"still readable")
    os.chown(path, ALICE, ALICE)

    def read() -> bytes:
        fd = os.open("f", os.O_RDWR)
        os.chmod("f", 0)
        os.write(fd, b"S")
        return os.pread(fd, 100, 0)

    assert as_user(read, cwd=here, uid=ALICE) == b"Still readable"
