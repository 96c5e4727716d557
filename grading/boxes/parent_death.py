"""Who is left behind by a parent that died, in a program that runs a submission."""

import ctypes
import sys

_PR_SET_CHILD_SUBREAPER = 36  # Linux, prctl(2)


def adopt_orphans() -> None:
    """What a submission forks off becomes our child when its parent dies, and so ends with us."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
