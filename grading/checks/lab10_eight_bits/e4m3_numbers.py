"""The numbers of E4M3 (torch.float8_e4m3fn), and those next to a given number."""

import torch
from torch import Tensor

F8, TOP = torch.float8_e4m3fn, 448.0
GRID = torch.arange(127, dtype=torch.uint8).view(F8).double()  # all that are not negative, in order: 0 to 448
SMALLEST_NORMAL = 2.0**-6


def nearest(x: Tensor) -> Tensor:
    """Round float64 numbers to the nearest of E4M3, and numbers beyond 448 to 448."""
    return x.clamp(-TOP, TOP).to(F8).double()


def neighbours(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the numbers of E4M3 next below and next above; twice the same number if it is one of them."""
    size = x.abs().clamp(max=TOP).contiguous()
    below = GRID[torch.searchsorted(GRID, size, right=True) - 1]
    above = GRID[torch.searchsorted(GRID, size)]
    return torch.where(x < 0, -above, below), torch.where(x < 0, -below, above)
