"""Adopt processes whose parent has died, in a program that runs a submission."""

import ctypes
import sys

_PR_SET_CHILD_SUBREAPER = 36  # Linux, prctl(2)


def become_subreaper() -> None:
    """Make us the parent of descendants whose own parent dies (Linux only), so that they end with us."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
