"""Staging: the bytes of contents on the local disk, one file per content, and their digests.

Unpublished bytes are never evicted. A file here is named by its content id and is written by one content only.
"""

from __future__ import annotations

from ckptfs.staging.digest import BLOCK_BYTES, DIGEST_BYTES, digest_blocks, digest_bytes
from ckptfs.staging.files import Staging
from ckptfs.staging.space import SpaceGuard

__all__ = ["BLOCK_BYTES", "DIGEST_BYTES", "SpaceGuard", "Staging", "digest_blocks", "digest_bytes"]
