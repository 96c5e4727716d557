"""Intervals of the original parameters inside flat ones, on this rank."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from shardlab.fsdp.flat_parameter import FlatParameter


@dataclass(frozen=True, eq=False)
class FlatInterval:
    """This rank holds elements [start, end) of a flattened parameter, in `shard[offset : offset + end - start]`."""

    name: str
    shape: torch.Size
    start: int
    end: int
    shard: nn.Parameter  # the one that the optimizer has
    offset: int
    aliases: tuple[str, ...]  # further names, if it is tied


def flat_intervals(model: nn.Module) -> Iterator[FlatInterval]:
    """Yield where each original parameter's part lies on this rank, for all flat parameters of the model."""
    names = {m: name for name, m in model.named_modules()}
    for m in model.modules():
        for layout in m._unit.layouts if hasattr(m, "_unit") else []:
            if isinstance(layout, FlatParameter):
                for p, (start, end, offset) in zip(layout.params, layout.intervals(), strict=True):
                    first, *aliases = (f"{names[module]}.{name}".lstrip(".") for module, name in p.places)
                    yield FlatInterval(first, p.shape, start, end, layout.sharded_params[0], offset, tuple(aliases))
