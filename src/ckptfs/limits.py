"""Bounds on what could otherwise grow or wait for ever, with the relations they must keep checked at import."""

from __future__ import annotations

from typing import Final

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30

# ----------------------------------------------------------------------------------------------------- settings' ranges
CACHE_BYTES_MIN: Final = 64 * MIB
"""Smallest cache size that may be asked for: a few parts must fit, or nothing could be staged while parts go up."""

PART_BYTES_STEP: Final = 64 * KIB
"""Parts are read through maps of the staging file: they begin on a multiple of this."""

PART_BYTES_MIN: Final = 1 * MIB
PART_BYTES_MAX: Final = 5 * GIB
PART_BYTES_DEFAULT: Final = 8 * MIB

UPLOAD_COUNT_MAX: Final = 256
UPLOAD_COUNT_DEFAULT: Final = 8

REFRESH_S_MIN: Final = 0.05
REFRESH_S_MAX: Final = 86400.0
REFRESH_S_DEFAULT: Final = 30.0

ID_MAX: Final = (1 << 32) - 2
"""Largest uid or gid: the one above it means 'no change' to chown(2)."""

# ------------------------------------------------------------------------------------------------------- control socket
CONTROL_LINE_BYTES_MAX: Final = 1 * MIB
"""Longest request or reply: a status of a busy mount takes a few KiB."""

CONTROL_CONNECTION_COUNT_MAX: Final = 32
"""Clients served at once; one more is told to come back."""

CONTROL_REQUEST_S: Final = 10.0
"""Deadline of a request that does not wait for publication."""

CONTROL_GRACE_S: Final = 5.0
"""How much longer than the server's own deadline a client waits for its answer."""

PROGRESS_S: Final = 1.0
"""Between two progress lines of a request that waits for publication."""

STOP_S: Final = 120.0
"""Deadline for the end of a session once everything was published or is to be kept: unmount, commit, close."""

# --------------------------------------------------------------------------------------------------------- process life
START_S: Final = 600.0
"""Deadline for a mount to become usable, recovery of a large cache directory included."""

START_QUIET_S: Final = 5.0
"""A start that takes longer says so."""

DETACH_S: Final = 60.0
"""Deadline of one unmount call: the kernel writes dirty pages back through the daemon before it returns."""

LOG_FILE_BYTES: Final = 10 * MIB
LOG_FILE_COUNT: Final = 4
"""Log files kept, the current one included."""

LOG_QUEUE_LINES_MAX: Final = 10_000
"""Lines that wait for the log file's disk; more are dropped and counted, so that a stalled disk stops nothing."""

assert PART_BYTES_MIN % PART_BYTES_STEP == 0, "the smallest part must itself be a legal part"
assert PART_BYTES_MIN <= PART_BYTES_DEFAULT <= PART_BYTES_MAX, "the default part must be a legal part"
assert CACHE_BYTES_MIN >= 4 * PART_BYTES_DEFAULT, "a few parts must fit into the smallest cache"
assert 1 <= UPLOAD_COUNT_DEFAULT <= UPLOAD_COUNT_MAX, "the default upload count must be a legal one"
assert REFRESH_S_MIN <= REFRESH_S_DEFAULT <= REFRESH_S_MAX, "the default refresh must be a legal one"
assert PROGRESS_S + CONTROL_GRACE_S < CONTROL_REQUEST_S, "a live server speaks well before a client gives up on it"
assert DETACH_S + CONTROL_REQUEST_S < STOP_S < START_S, "an outer deadline leaves room for the inner ones"
