"""How far off a reply is, where a reply may be no number at all."""

from collections.abc import Iterable
from math import inf, isnan


def largest(errors: Iterable[float]) -> float:
    """`max`, but of what is no number: infinity. Python's own passes over a nan, wherever it is not the first."""
    return max(inf if isnan(error) else error for error in errors)
