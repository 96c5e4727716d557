"""Return freed memory to the system, on a rank that is measured from outside and in the process that starts it.

malloc keeps small freed blocks and the gaps between them, so a rank may seem to hold twice what its tensors do. A
submission can undo this; it is then seen to hold more.
"""

import ctypes
import gc
import sys
import time

REST_S = 0.6
_M_MMAP_THRESHOLD, _LARGE_BYTES = -3, 16 << 10  # mallopt(3): larger blocks are mappings that free() gives back


def give_back_at_once() -> None:
    if _libc and hasattr(_libc, "mallopt"):
        _libc.mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)


def give_back() -> None:
    """Return to the system what is unused now."""
    gc.collect()
    if _libc and hasattr(_libc, "malloc_trim"):
        _libc.malloc_trim(0)


def rest() -> None:
    """Free what is unused, then sleep, so that the counters show what is held now."""
    give_back()
    time.sleep(REST_S)


_libc = ctypes.CDLL(None) if sys.platform == "linux" else None
