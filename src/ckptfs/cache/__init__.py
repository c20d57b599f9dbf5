"""The cache: bytes that the bucket has too, brought back block by block, kept under a bound, evicted by age.

Bytes that the bucket is not known to hold are none of its business and are never evicted.
"""

from __future__ import annotations

from ckptfs.cache.evict import CacheLimits, Evictor
from ckptfs.cache.fetch import Fetcher, FetchLimits

__all__ = ["CacheLimits", "Evictor", "FetchLimits", "Fetcher"]
