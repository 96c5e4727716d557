"""How far off a reply is, where a reply may be no number at all."""

from collections.abc import Iterable
from math import inf, isnan


def size(error: float) -> float:
    """How far it is from none; infinity if it is no number. Python's `max` passes over a nan that is not first."""
    return inf if isnan(error) else abs(error)


def largest(errors: Iterable[float]) -> float:
    """By `size`."""
    return max(map(size, errors))
