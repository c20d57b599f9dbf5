"""POSIX ACLs, set and shown by the system's own tools, enforced by the kernel."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

from fs_support import as_user, errno_of, run

if TYPE_CHECKING:
    from pathlib import Path

ALICE, BOB, TEAM = 1000, 1001, 2000


def _acl(path: Path) -> set[str]:
    return set(run("getfacl", "--absolute-names", "--omit-header", "--numeric", "--no-effective", path).split())


def _can(here: Path, user: int, path: str, *, groups: tuple[int, ...] = ()) -> str:
    def attempt() -> str:
        return "".join(
            letter for letter, bit in (("r", os.R_OK), ("w", os.W_OK), ("x", os.X_OK)) if os.access(path, bit)
        )

    return str(as_user(attempt, cwd=here, uid=user, groups=groups))


def test_named_users_and_groups(here: Path) -> None:
    """acl(5): a named user's entry decides for him, a named group's for its members, both within the mask."""
    path = here / "f"
    path.write_bytes(b"")
    path.chmod(0o600)
    run("setfacl", "-m", f"u:{ALICE}:rw,g:{TEAM}:r", path)
    assert _acl(path) == {
        "user::rw-",
        f"user:{ALICE}:rw-",
        "group::---",
        f"group:{TEAM}:r--",
        "mask::rw-",
        "other::---",
    }
    assert (_can(here, ALICE, "f"), _can(here, BOB, "f"), _can(here, BOB, "f", groups=(TEAM,))) == ("rw", "", "r")
    assert as_user(lambda: errno_of(lambda: os.close(os.open("f", os.O_WRONLY))), cwd=here, uid=ALICE) == 0
    assert as_user(lambda: errno_of(lambda: os.open("f", os.O_WRONLY)), cwd=here, uid=BOB) == errno.EACCES


def test_the_mask_is_the_group_bits(here: Path) -> None:
    """acl(5): chmod of the group bits changes the mask, the mask shows as the group bits."""
    path = here / "f"
    path.write_bytes(b"")
    path.chmod(0o644)
    run("setfacl", "-m", f"u:{ALICE}:rwx", path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o674
    path.chmod(0o640)
    assert "mask::r--" in _acl(path)
    assert "group::r--" in _acl(path)
    assert _can(here, ALICE, "f") == "r"
    run("setfacl", "-m", "m::rw", path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    assert _can(here, ALICE, "f") == "rw"


def test_a_minimal_acl_is_a_mode(here: Path) -> None:
    """acl(5): setting only the three base entries is a chmod, and removing the rest leaves none behind."""
    path = here / "f"
    path.write_bytes(b"")
    run("setfacl", "-m", f"u:{ALICE}:rwx", path)
    assert "system.posix_acl_access" in os.listxattr(path)
    run("setfacl", "-b", path)
    assert "system.posix_acl_access" not in os.listxattr(path)
    run("setfacl", "--set", "u::rw,g::r,o::-", path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_default_acls_are_inherited(here: Path) -> None:
    """acl(5): what is made below gets the default ACL as its own, cut by the mode asked for."""
    top = here / "d"
    top.mkdir()
    run("setfacl", "-d", "-m", f"u::rwx,u:{ALICE}:rwx,g::rx,o::-", top)
    before = os.umask(0)
    try:
        (top / "f").touch(0o666)
        (top / "sub").mkdir(0o777)
        (top / "sub" / "deeper").mkdir(0o777)
    finally:
        os.umask(before)
    assert _acl(top / "f") == {"user::rw-", f"user:{ALICE}:rwx", "group::r-x", "mask::rw-", "other::---"}
    assert _can(here, ALICE, "d/f") == "rw"
    for directory in (top / "sub", top / "sub" / "deeper"):
        assert {entry for entry in _acl(directory) if entry.startswith("default:")} == {
            "default:user::rwx",
            f"default:user:{ALICE}:rwx",
            "default:group::r-x",
            "default:mask::rwx",
            "default:other::---",
        }
        assert _can(here, ALICE, f"{directory.relative_to(here)}") == "rwx"
    assert not any(entry.startswith("default:") for entry in _acl(top / "f"))


def test_the_umask_beside_a_default_acl(here: Path) -> None:
    """acl(5) leaves the umask out where there is a default ACL; under pyfuse3 the kernel applies it before we see it.

    So there what is made is cut by the umask as well: never more rights than the ACL gives.
    """
    top = here / "d"
    top.mkdir()
    run("setfacl", "-d", "-m", f"u::rwx,u:{ALICE}:rwx,g::rx,o::r", top)
    before = os.umask(0o027)
    try:
        (top / "f").touch(0o666)
        (top / "sub").mkdir(0o777)
    finally:
        os.umask(before)
    assert _acl(top / "f") == {"user::rw-", f"user:{ALICE}:rwx", "group::r-x", "mask::r--", "other::---"}
    own = {entry for entry in _acl(top / "sub") if not entry.startswith("default:")}
    assert own == {"user::rwx", f"user:{ALICE}:rwx", "group::r-x", "mask::r-x", "other::---"}


def test_who_may_set_acls(here: Path) -> None:
    """acl(5): the owner; a default ACL only on directories."""
    path = here / "f"
    path.write_bytes(b"")
    os.chown(path, ALICE, ALICE)
    acl = bytes.fromhex("0200000001000600ffffffff04000600ffffffff20000600ffffffff")
    set_it = lambda name: errno_of(lambda: os.setxattr("f", name, acl))  # noqa: E731
    assert as_user(lambda: set_it("system.posix_acl_access"), cwd=here, uid=BOB) == errno.EPERM
    assert as_user(lambda: set_it("system.posix_acl_access"), cwd=here, uid=ALICE) == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o666
    assert errno_of(lambda: os.setxattr(path, "system.posix_acl_default", acl)) == errno.EACCES


def test_acls_travel_with_copies(here: Path, tmp_path: Path) -> None:
    """cp -a and rsync -A carry ACLs onto the mount, within it and off it."""
    run("setfacl", "-m", f"u:{ALICE}:rwx,d:u:{BOB}:rx", tmp_path)
    source = here / "source"
    source.mkdir()
    (source / "f").write_bytes(b"f")
    run("setfacl", "-m", f"u:{ALICE}:rwx", source / "f")
    run("setfacl", "-m", f"d:u:{BOB}:rx", source)
    run("cp", "-a", source, here / "copy")
    run("rsync", "-aAX", f"{source}/", here / "synced")
    for target in ("copy", "synced"):
        assert _acl(here / target / "f") == _acl(source / "f")
        assert _acl(here / target) == _acl(source)
