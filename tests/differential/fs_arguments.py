"""Which operations the differential test draws, and from what their arguments.

Names, offsets and modes come from small sets, and most paths and handles are drawn as a number, which the pair turns
into one of those that exist when the operation runs: so operations meet.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import fs_operations as ops
from hypothesis import strategies as st

SLOT_COUNT = 5
OPERATION_COUNT = 60

Draw = Callable[[Random], Any]
Operation = tuple[Callable[..., object], dict[str, Any]]


def of(choices: Sequence[object]) -> Draw:
    """One of ``choices``."""
    return lambda random: random.choice(choices)


def either(*draws: Draw) -> Draw:
    """What one of ``draws`` gives."""
    return lambda random: random.choice(draws)(random)


def up_to_three_of(choices: Sequence[object]) -> Draw:
    """A tuple of none to three of ``choices``."""
    return lambda random: tuple(random.choices(choices, k=random.randrange(4)))


_NAMES = (b"a", b"b", b"odd\xff\nname", b"d", b"e\xfe")
_DIRECTORIES = (b"", b"d/", b"d/e\xfe/", b"e\xfe/")
_PATHS = tuple(directory + name for directory in _DIRECTORIES for name in _NAMES)
_STRANGE_PATHS = (b".", b"d/..", b"a/", b"d/", b"a/b", b"l/a", b"n" * 255, b"n" * 256, b"d/./a", b"", b"l", b"d/l")

existing = of(range(64 + 24))
"""Which of the paths, or of the open handles, that there are, modulo their count; from 64.

The path of an open handle.
"""
new_paths = either(of(_PATHS), of((*_PATHS, *_STRANGE_PATHS)), existing)
paths = either(existing, existing, existing, existing, new_paths)
slots = of(range(SLOT_COUNT))
uids = of((0,) * 10 + (1000, 1001))
owners = of((-1, 0, 1000, 1001))
modes = of((0o644, 0o777, 0o600, 0o755, 0o000, 0o444, 0o1777, 0o2775, 0o4755, 0o2755, 0o6711, 0o640))
offsets = of((0, 1, 100, 4095, 4096, 5000, 65536, 70000, 131072, 1 << 20))
lengths = of((0, 1, 10, 511, 4096, 5000, 65537, 140000))
seeds = of(range(10))
times_ns = of(
    (0, 1, 999_999_999, 1_000_000_000_123_456_789, -1_000_000_001, 2_147_483_648_000_000_001, 4_102_444_800_999_999_999)
)
xattr_names = of(("user.a", "user.b", "trusted.t", "user." + "n" * 250, "user." + "n" * 251))
xattr_values = of((b"", b"v", bytes(range(256))))
open_flags = either(
    of(((), (os.O_CREAT,), (os.O_TRUNC,), (os.O_CREAT, os.O_TRUNC), (os.O_APPEND,))),
    up_to_three_of(
        (
            *(os.O_CREAT, os.O_TRUNC, os.O_APPEND, os.O_EXCL, os.O_NOFOLLOW, os.O_DIRECTORY),
            *(os.O_SYNC, os.O_DSYNC, os.O_NOATIME, os.O_PATH),
        )
    ),
)


def _acl(*entries: tuple[int, int, int]) -> bytes:
    """An ACL in the form of the ``system.posix_acl_*`` attributes (linux/posix_acl_xattr.h): (tag, permissions, id)."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


_NOBODY = 0xFFFFFFFF
_OWNER, _USER, _GROUP_OWNER, _GROUP, _MASK, _OTHER = 1, 2, 4, 8, 0x10, 0x20
acls = of(
    (
        _acl((_OWNER, 6, _NOBODY), (_GROUP_OWNER, 4, _NOBODY), (_OTHER, 4, _NOBODY)),
        _acl(
            (_OWNER, 7, _NOBODY),
            (_USER, 6, 1000),
            (_GROUP_OWNER, 5, _NOBODY),
            (_MASK, 6, _NOBODY),
            (_OTHER, 0, _NOBODY),
        ),
        _acl(
            (_OWNER, 6, _NOBODY),
            (_GROUP_OWNER, 0, _NOBODY),
            (_GROUP, 7, 1001),
            (_MASK, 7, _NOBODY),
            (_OTHER, 1, _NOBODY),
        ),
        _acl((_OWNER, 6, _NOBODY), (_OTHER, 4, _NOBODY)),
        b"not an acl",
    )
)

_FIRST = (
    (ops.op_open, {"into": 0, "path": b"a", "access": os.O_RDONLY, "extra": (), "mode": 0, "uid": 0}),
    (ops.op_open, {"into": 1, "path": b"d/b", "access": os.O_RDWR, "extra": (), "mode": 0, "uid": 0}),
)
OPERATIONS: dict[Callable[..., object], dict[str, Draw]] = {
    ops.op_lstat: {"path": paths, "uid": uids},
    ops.op_open: {
        "into": slots,
        "path": new_paths,
        "access": of((os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_RDWR)),
        "extra": open_flags,
        "mode": modes,
        "uid": uids,
    },
    ops.op_close: {"slot": existing},
    ops.op_dup: {"slot": existing, "into": slots},
    ops.op_read: {"slot": existing, "length": lengths},
    ops.op_pread: {"slot": existing, "length": lengths, "offset": offsets},
    ops.op_write: {"slot": existing, "length": lengths, "seed": seeds, "uid": uids},
    ops.op_pwrite: {"slot": existing, "length": lengths, "offset": offsets, "seed": seeds},
    ops.op_pwritev: {"slot": existing, "offset": offsets, "seed": seeds},
    ops.op_lseek: {"slot": existing, "offset": of((0, 3, 5000, -1, -4096)), "whence": of(range(3))},
    ops.op_fstat: {"slot": existing},
    ops.op_ftruncate: {"slot": existing, "length": offsets},
    ops.op_fsync: {"slot": existing},
    ops.op_fdatasync: {"slot": existing},
    ops.op_fchmod: {"slot": existing, "mode": modes},
    ops.op_futimens: {"slot": existing, "mtime_ns": times_ns},
    ops.op_fsetxattr: {"slot": existing, "name": xattr_names, "value": xattr_values},
    ops.op_posix_fallocate: {"slot": existing, "offset": offsets, "length": lengths},
    ops.op_copy_file_range: {
        "slot": existing,
        "slot2": existing,
        "length": lengths,
        "offset": offsets,
        "target_offset": offsets,
    },
    ops.op_sendfile: {"slot": existing, "slot2": existing, "length": lengths},
    ops.op_mmap_read: {"slot": existing},
    ops.op_mmap_write: {"slot": existing, "position": offsets, "length": lengths, "seed": seeds},
    ops.op_stat: {"path": paths},
    ops.op_mkdir: {"path": new_paths, "mode": modes, "uid": uids},
    ops.op_rmdir: {"path": paths, "uid": uids},
    ops.op_unlink: {"path": paths, "uid": uids},
    ops.op_rename: {"path": paths, "target": new_paths, "flags": of((0, 0, 0, 0, 1, 2, 3)), "uid": uids},
    ops.op_link: {"path": paths, "target": new_paths, "uid": uids},
    ops.op_symlink: {"target": of((b"a", b"d", b"../a", b"nowhere", b"l", b"t" * 300)), "path": new_paths, "uid": uids},
    ops.op_readlink: {"path": paths},
    ops.op_mknod: {
        "path": new_paths,
        "kind": of((stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFREG)),
        "mode": modes,
        "uid": uids,
    },
    ops.op_truncate: {"path": paths, "length": offsets, "uid": uids},
    ops.op_chmod: {"path": paths, "mode": modes, "uid": uids},
    ops.op_chown: {"path": paths, "owner": owners, "group": owners, "follow": of((False, True)), "uid": uids},
    ops.op_utimens: {
        "path": paths,
        "mtime_ns": either(of((None,)), times_ns),
        "follow": of((False, True)),
        "uid": uids,
    },
    ops.op_access: {"path": paths, "mode": of(range(8))},
    ops.op_listdir: {"path": paths, "uid": uids},
    ops.op_fsync_directory: {"path": paths},
    ops.op_setxattr: {"path": paths, "name": xattr_names, "value": xattr_values, "flags": of(range(3)), "uid": uids},
    ops.op_getxattr: {"path": paths, "name": xattr_names, "uid": uids},
    ops.op_listxattr: {"path": paths},
    ops.op_removexattr: {"path": paths, "name": xattr_names, "uid": uids},
    ops.op_set_acl: {"path": paths, "default": of((False, True)), "acl": acls, "uid": uids},
    ops.op_direct_write: {"path": paths, "block": of(range(21)), "count": of(range(1, 9)), "seed": seeds},
}

_WEIGHTS = {ops.op_open: 8, ops.op_rename: 4, ops.op_mkdir: 2, ops.op_link: 3, ops.op_pwrite: 3, ops.op_pread: 2}


def _drawn(seed: int) -> list[Operation]:
    random = Random(seed)
    functions = list(OPERATIONS)
    weights = [_WEIGHTS.get(function, 1) for function in functions]
    return [*_FIRST] + [
        (function, {name: draw(random) for name, draw in OPERATIONS[function].items()})
        for function in random.choices(functions, weights, k=OPERATION_COUNT)
    ]


def operation_lists() -> st.SearchStrategy[list[Operation]]:
    """Lists of (function, arguments).

    Hypothesis chooses the seed that one is drawn from. What it would draw itself, operation by operation, is the same
    few again and again (measured: one in seven distinct); so a failure is made small by the test, not by Hypothesis.
    """
    return st.integers(0, 2**64).map(_drawn)
