"""Compute in one process, from whole matrices: scales, rounded weights, and those of usual mistakes."""

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

from grading.checks.lab10_eight_bits.draw import Instance
from grading.checks.lab10_eight_bits.e4m3_numbers import F8, TOP, nearest

CLOSE = 1e-5  # relative error of a decoded number; two float32 roundings give 1.2e-7
EDGE = 1e-6  # relative: this near to the middle between two codes, either is right


def scales(flat: Tensor, group_sizes: list[int]) -> Tensor:
    """Return each number's scale, float64: the largest size in its group over 448, or 1 if all are zero."""
    amax = torch.stack([part.abs().max() for part in flat.double().split(group_sizes)])
    return torch.where(amax == 0, 1.0, amax / TOP).repeat_interleave(torch.tensor(group_sizes))


def rounded(flat: Tensor, scale: Tensor) -> Tensor:
    return nearest(flat.double() / scale) * scale


def wrong_places(found: Tensor, flat: Tensor, scale: Tensor) -> Tensor:
    """Return a mask of the numbers that are not what one process decodes."""
    x = flat.double() / scale
    off = [found.double() - nearest(x * (1 + edge)) * scale for edge in (-EDGE, EDGE)]
    right = [error.abs() <= CLOSE * flat.double().abs() for error in off]
    return ~(right[0] | right[1])


# Mistakes


def of_own_shard(flat: Tensor, instance: Instance) -> Tensor:
    """Round each shard with the largest numbers that its rank has."""
    groups = torch.arange(len(instance.group_sizes)).repeat_interleave(torch.tensor(instance.group_sizes))
    parts = []
    for first, last in pairwise(instance.cuts):
        if last > first:
            mine = groups[first:last].unique_consecutive(return_counts=True)[1].tolist()
            parts.append(rounded(flat[first:last], scales(flat[first:last], mine)))
    return torch.cat(parts)


def _under(other: str) -> Callable[[Tensor, Instance], Tensor]:
    def with_other_format(flat: Tensor, instance: Instance) -> Tensor:
        formats = [other] * len(instance.formats)
        return rounded(flat, scales(flat, instance._replace(formats=formats).group_sizes))

    return with_other_format


def by_column(flat: Tensor, instance: Instance) -> Tensor:
    found = []
    for part, shape, format in zip(flat.split(instance.sizes), instance.shapes, instance.formats, strict=True):
        turned = part.view(shape).t() if format == "row" else part.view(1, -1)
        scale = scales(turned.flatten(), [turned.shape[1]] * len(turned))
        both = rounded(turned.flatten(), scale).view(turned.shape)
        found.append((both.t() if format == "row" else both).flatten())
    return torch.cat(found)


def not_rounded(flat: Tensor, instance: Instance) -> Tensor:
    return flat.double()


def in_bf16(flat: Tensor, instance: Instance) -> Tensor:
    return flat.bfloat16().double()


def without_scale(flat: Tensor, instance: Instance) -> Tensor:
    return nearest(flat.double())


def largest_not_size(flat: Tensor, instance: Instance) -> Tensor:
    """Take the largest number of a group, which may be far below the size of a negative one, and clip the others."""
    top = torch.stack([part.double().max() for part in flat.split(instance.group_sizes)])
    scale = torch.where(top > 0, top / TOP, 1.0).repeat_interleave(torch.tensor(instance.group_sizes))
    return rounded(flat, scale)


def twice(flat: Tensor, instance: Instance) -> Tensor:
    """Round weights that were rounded to bf16 before."""
    scale = scales(flat, instance.group_sizes)
    return (flat.bfloat16().double() / scale).clamp(-TOP, TOP).to(F8).double() * scale


MISTAKES = {
    "the scales are those of each rank's own shard: a group that a border cuts has numbers on several ranks, and its "
    "scale is that of the largest of all.": of_own_shard,
    'matrices of the format "row" were given one scale.': _under("tensor"),
    'matrices of the format "tensor" were given a scale for every row.': _under("row"),
    "the scales are those of columns: a row of a matrix (R, C) has C numbers that follow on each other.": by_column,
    "the weights were not rounded to E4M3 at all.": not_rounded,
    "the weights are those of bf16, not of E4M3.": in_bf16,
    "the weights were rounded to E4M3 without a scale.": without_scale,
    "the scale is that of the largest number: it must be that of the largest absolute value.": largest_not_size,
    "the weights were rounded to 16 bits first, and then to E4M3: a number near the middle of two codes gets the wrong "
    "one.": twice,
}


def mistake(found: Tensor, flat: Tensor, instance: Instance) -> str:
    """Return the mistake that gives these numbers, in words, or ""."""
    for words, make in MISTAKES.items():
        if torch.isclose(found.double(), make(flat, instance), rtol=CLOSE, atol=0).all():
            return words
    return ""
