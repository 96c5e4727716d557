"""Number the elements of a flat gradient by what they have in common: a scale, a row, a column, a position."""

import torch
from torch import Tensor

from grading.checks.lab10_eight_bits.draw import Instance


def sets_of(instance: Instance) -> dict[str, Tensor]:
    """Return by name who may share a random number: an id for each element."""
    groups = torch.tensor(instance.group_sizes)
    return {
        "all numbers of a rank's call": torch.zeros(int(groups.sum()), dtype=torch.int64),
        "numbers with one scale": torch.arange(len(groups)).repeat_interleave(groups),
        "numbers along rows": rows(instance),
        "numbers along columns": columns(instance),
    }


def rows(instance: Instance) -> Tensor:
    widths = [width for height, width in instance.shapes for _ in range(height)]
    return torch.arange(len(widths)).repeat_interleave(torch.tensor(widths))


def columns(instance: Instance) -> Tensor:
    found, first = [], 0
    for height, width in instance.shapes:
        found.append(first + torch.arange(width).repeat(height))
        first += width
    return torch.cat(found)


def positions(instance: Instance) -> Tensor:
    return torch.cat([torch.arange(size) for size in instance.sizes])
