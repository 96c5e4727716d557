"""On a rank that a witness looks at: what Python and torch have freed, the system is to have back at once.

malloc keeps small blocks for later, and the gaps between them: by its own measure a rank may hold twice what its
tensors do. A submission can undo this, and is then seen to hold more.
"""

import ctypes
import gc
import sys
import time

REST_S = 0.6
_M_MMAP_THRESHOLD, _LARGE_BYTES = -3, 16 << 10  # mallopt(3): larger blocks are the system's own, each for itself


def give_back_at_once() -> None:
    if _libc and hasattr(_libc, "mallopt"):
        _libc.mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)


def rest() -> None:
    """Stand still, so that what is held now can be seen."""
    gc.collect()
    if _libc and hasattr(_libc, "malloc_trim"):
        _libc.malloc_trim(0)
    time.sleep(REST_S)


_libc = ctypes.CDLL(None) if sys.platform == "linux" else None
