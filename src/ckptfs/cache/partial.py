"""A content that is partly here: which blocks, in which sparse file, and what is on its way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import trio

from ckptfs.staging import BLOCK_BYTES, DIGEST_BYTES

if TYPE_CHECKING:
    from ckptfs.cache.readahead import Stream
    from ckptfs.disk.base import Fd
    from ckptfs.types import ContentId


@dataclass(slots=True, eq=False)
class Flight:
    """Blocks that are being fetched once for all who want them.

    Attributes:
        first: number of the first block.
        count: how many.
        done: set at the end, whatever it is.
        error: what it met.
        data: the bytes, when they could not be written to the cache.
        unkept: why they could not be.
    """

    first: int
    count: int
    done: trio.Event = field(default_factory=trio.Event)
    error: Exception | None = None
    data: memoryview | None = None
    unkept: OSError | None = None


@dataclass(slots=True, eq=False)
class Partial:
    """The state of one content; in memory only: after a restart it begins again.

    Attributes:
        content: which.
        size: of the whole content, bytes.
        fd: of its file, while it is open.
        present: for each block 1 when it is in the file.
        missing_count: blocks that are not.
        flights: for each block that is on its way, by what.
        digests: of the blocks that were fetched.
        streams: its readers.
        users: calls at work on it; it is neither closed nor dropped meanwhile.
        ready: set when the file is open, or cannot be (``failure``).
        settling: it is being made a clean content.
        dropped: it is of no use any more.
    """

    content: ContentId
    size: int
    fd: Fd | None = None
    present: bytearray = field(default_factory=bytearray)
    missing_count: int = 0
    flights: dict[int, Flight] = field(default_factory=dict)
    digests: bytearray = field(default_factory=bytearray)
    streams: tuple[Stream, ...] = ()
    users: int = 0
    ready: trio.Event = field(default_factory=trio.Event)
    failure: OSError | None = None
    settling: trio.Event | None = None
    dropped: bool = False

    def __post_init__(self) -> None:
        count = -(-self.size // BLOCK_BYTES)
        self.present = bytearray(count)
        self.missing_count = count
        self.digests = bytearray(count * DIGEST_BYTES)

    @property
    def block_count(self) -> int:
        """Blocks of the whole content."""
        return len(self.present)

    @property
    def present_bytes(self) -> int:
        """Bytes in the file."""
        return min(self.size, (self.block_count - self.missing_count) * BLOCK_BYTES)

    def blocks(self, offset: int, end: int) -> range:
        """Blocks that a range of bytes touches."""
        return range(offset // BLOCK_BYTES, -(-min(end, self.size) // BLOCK_BYTES))

    def wanted(self, blocks: range) -> list[int]:
        """Those of ``blocks`` that are neither here nor on their way."""
        return [block for block in blocks if not self.present[block] and block not in self.flights]

    def arrived(self, flight: Flight, digests: bytes) -> None:
        """The blocks of a flight are in the file."""
        for block in range(flight.first, flight.first + flight.count):
            assert not self.present[block], f"block {block} of content {self.content} came twice"
            self.present[block] = 1
        self.missing_count -= flight.count
        self.digests[flight.first * DIGEST_BYTES : (flight.first + flight.count) * DIGEST_BYTES] = digests
