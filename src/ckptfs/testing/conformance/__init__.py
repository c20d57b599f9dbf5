"""The conformance suite of object stores: what :mod:`ckptfs.objectstore.base` promises, one case per promise.

A test parametrises over :data:`CASES` and gives each case a :class:`Subject`; the same cases run over every adapter and
every wrapper, against the real thing behind it::

    @pytest.mark.parametrize("case", CASES, ids=case_name)
    def test_memory_store(case):
        bucket = MemoryBucket()
        run_case(case, Subject(open=lambda: MemoryObjectStore(RealEnv(), bucket)))

A case assumes that nothing is under the store's prefix. It never sleeps and hopes.
"""

from ckptfs.testing.conformance import conditions, copies, keys, life, listings, objects, uploads
from ckptfs.testing.conformance.subject import CASES, Case, Deviation, Subject, case_name, run_case, unique_prefix

__all__ = [
    "CASES",
    "Case",
    "Deviation",
    "Subject",
    "case_name",
    "conditions",
    "copies",
    "keys",
    "life",
    "listings",
    "objects",
    "run_case",
    "unique_prefix",
    "uploads",
]
