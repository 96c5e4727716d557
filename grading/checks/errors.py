"""How far off a reply is, where a reply may be no number at all."""

from collections.abc import Iterable
from math import inf, isnan


def size(error: float) -> float:
    """Itself, and of what is no number: infinity. Python's `max` passes over a nan, wherever it is not the first."""
    return inf if isnan(error) else abs(error)


def largest(errors: Iterable[float]) -> float:
    return max(map(size, errors))
