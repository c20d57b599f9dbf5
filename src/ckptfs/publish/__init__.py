"""Publication: the bucket becomes what the namespace wants, key by key, conditionally, verified, and again until it is.

Driven by obligations, which say only that a key may differ: each attempt looks at both sides anew, so it is idempotent
and a crash anywhere costs a second look. Decisions are in :mod:`~ckptfs.publish.plan`.
"""

from __future__ import annotations

from ckptfs.publish.hooks import Conflict
from ckptfs.publish.publisher import Publisher
from ckptfs.publish.upload import PublishLimits

__all__ = ["Conflict", "PublishLimits", "Publisher"]
