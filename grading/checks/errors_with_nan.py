"""Sizes of errors, for replies that may not be numbers."""

from collections.abc import Iterable
from math import inf, isnan


def size(error: float) -> float:
    """Return the error's absolute value, or infinity for NaN. (Python's `max` ignores a NaN that is not first.)"""
    return inf if isnan(error) else abs(error)


def largest(errors: Iterable[float]) -> float:
    """Return the largest size of the errors; see `size`."""
    return max(map(size, errors))
