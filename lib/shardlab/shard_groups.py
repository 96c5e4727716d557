"""Process groups over which parameters are sharded, the two collectives that they use, and this rank's part.

On a 1-D mesh, parameters are sharded over all N ranks. On a 2-D mesh (R, N), they are sharded over each row of N ranks,
and the R rows are replicas (hybrid sharding): all_gather and reduce_scatter run inside a row, between GPUs that are
close. Only a gradient's shard, 1/N of it, is all_reduced between rows.

Source: torch.distributed.reduce_scatter_single and all_gather_single; before 2.13, reduce_scatter_tensor and
all_gather_into_tensor.
"""

import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, optim
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.utils.weak import WeakIdKeyDictionary

reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)


@dataclass(frozen=True, eq=False)
class Ranks:
    """This rank's row and column of `mesh`. On a 1-D mesh there is no column: `replicate_group` is None."""

    shard_group: dist.ProcessGroup
    replicate_group: dist.ProcessGroup | None
    device: torch.device
    mesh: DeviceMesh

    @property
    def shard_size(self) -> int:
        return self.shard_group.size()

    @property
    def shard_rank(self) -> int:
        return self.shard_group.rank()

    @property
    def replicate_size(self) -> int:
        return self.replicate_group.size() if self.replicate_group else 1

    @property
    def groups(self) -> list[dist.ProcessGroup]:
        return [group for group in (self.shard_group, self.replicate_group) if group is not None]


def ranks_of(mesh: DeviceMesh | None) -> Ranks:
    """Return the groups of a mesh. None: all ranks in one row, on the accelerator if there is one.

    Raises ValueError for a mesh of more than two axes.
    """
    if mesh is None:
        mesh = init_device_mesh(default_device_type(), (dist.get_world_size(),))
    if mesh.ndim > 2:
        raise ValueError(
            f"rank {dist.get_rank()}: mesh must have 1 axis (shard) or 2 (replicate, shard), not {mesh.ndim}: {mesh}"
        )
    replicate = mesh.get_group(0) if mesh.ndim == 2 else None
    return Ranks(mesh.get_group(mesh.ndim - 1), replicate, current_device(mesh.device_type), mesh)


def default_device_type() -> str:
    """Return the accelerator's type, or "cpu" if there is none (even if torch was built with CUDA).

    Ranks that were launched for CPUs stay there, even beside a Mac's or Intel's accelerator, which gloo does not serve.
    """
    if os.environ.get("SHARDLAB_DEVICE") == "cpu":
        return "cpu"
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return accelerator.type if accelerator else "cpu"


def current_device(device_type: str) -> torch.device:
    if device_type == "cpu":
        return torch.device("cpu")
    return torch.device(device_type, torch.get_device_module(device_type).current_device())


def divide_factors(ranks: Ranks, dtype: torch.dtype) -> tuple[float, float, dist.ReduceOp.RedOpType]:
    """Return how to get the mean over all ranks in `dtype`: (divisor before, divisor after, operation).

    float32 and bfloat16 have room for any sum, so the collective averages. float16 overflows at 65504 and loses values
    below 6e-8, so gradients are divided by about the root of the number of ranks before the sum, and by the rest after
    it.
    """
    n = ranks.shard_size * ranks.replicate_size
    if n == 1:
        return 1.0, 1.0, dist.ReduceOp.SUM
    if dtype in (torch.float32, torch.bfloat16):
        return 1.0, 1.0, dist.ReduceOp.AVG
    before = 1
    while n % before == 0 and n / before > before:
        before *= 2
    return float(before), n / before, dist.ReduceOp.SUM


# This rank's part of a parameter, for optimizers and checkpoints

# For shards that are not DTensors: the pairs (kind of device, group) that `shard_groups` returns.
flat_shards: WeakIdKeyDictionary = WeakIdKeyDictionary()


def local(t: Tensor) -> Tensor:
    """Return this rank's part of a tensor, detached from the graph."""
    return (t.to_local() if isinstance(t, DTensor) else t).detach()


def shard_groups(p: Tensor) -> tuple[tuple[str, dist.ProcessGroup], ...]:
    """Return the groups over which p is sharded, each with the type of device that it sends from."""
    if not isinstance(p, DTensor):
        return flat_shards.get(p, ())
    mesh, axes = p.device_mesh, [axis for axis, place in enumerate(p.placements) if place.is_shard()]
    return tuple((mesh.device_type, mesh.get_group(axis)) for axis in axes)


NOT_ELEMENTWISE = (optim.LBFGS, optim.Adafactor, optim.Muon)  # what they do to an element depends on others


def refuse_parts(optimizer: optim.Optimizer, p: Tensor) -> None:
    """Raise ValueError if the optimizer would take this rank's part of `p` for a whole parameter."""
    if isinstance(optimizer, NOT_ELEMENTWISE) and any(group.size() > 1 for _, group in shard_groups(p)):
        raise ValueError(
            f"rank {dist.get_rank()}: {type(optimizer).__name__} needs whole parameters, and would get this rank's "
            "part of one: use fully_shard's layout PerParameter without offload, or ZeroRedundancyOptimizer"
        )


def hyperparameters(group: dict) -> dict:
    """Return a parameter group without its parameters: the learning rate and the like."""
    return {key: value for key, value in group.items() if key not in ("params", "param_names")}
