"""How far a tensor is from what it should be."""

from torch import Tensor


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Return the largest difference, over the largest element of `expected`."""
    return ((found - expected).abs().max() / expected.abs().max()).item()
