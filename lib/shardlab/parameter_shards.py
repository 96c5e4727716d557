"""Helpers of optimizers and checkpoints for parameters and their groups."""

import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils.weak import WeakIdKeyDictionary

# For shards that are not DTensors: the pairs (kind of device, group) that `shard_groups` returns.
flat_shards: WeakIdKeyDictionary = WeakIdKeyDictionary()


def local(t: Tensor) -> Tensor:
    """This rank's part of a tensor, detached from the graph."""
    return (t.to_local() if isinstance(t, DTensor) else t).detach()


def hyperparameters(group: dict) -> dict:
    """A parameter group without its parameters: the learning rate and the like."""
    return {key: value for key, value in group.items() if key not in ("params", "param_names")}


def shard_groups(p: Tensor) -> tuple[tuple[str, dist.ProcessGroup], ...]:
    """The groups whose ranks together hold all of p, once each, with the kind of device that they send from."""
    if not isinstance(p, DTensor):
        return flat_shards.get(p, ())
    mesh, axes = p.device_mesh, [axis for axis, place in enumerate(p.placements) if place.is_shard()]
    return tuple((mesh.device_type, mesh.get_group(axis)) for axis in axes)
