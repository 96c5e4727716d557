"""The ranks that hold shards of a parameter, and those that hold copies of the same shard.

On a 1-D mesh of N ranks everybody shards. On a 2-D mesh (R, N) each row of N ranks shards, and its R rows are replicas
of one another (hybrid sharding): all_gather and reduce_scatter run inside a row, between GPUs that are close; only a
gradient's shard, 1/N of it, is all_reduced between rows.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh


@dataclass(frozen=True, eq=False)
class Ranks:
    """This rank's two groups; None where it would be alone in one by design. `mesh` if they come from one."""

    shard_group: dist.ProcessGroup | None
    replicate_group: dist.ProcessGroup | None
    device: torch.device
    mesh: DeviceMesh | None = None

    @property
    def shard_size(self) -> int:
        return self.shard_group.size() if self.shard_group else 1

    @property
    def shard_rank(self) -> int:
        return self.shard_group.rank() if self.shard_group else 0

    @property
    def replicate_size(self) -> int:
        return self.replicate_group.size() if self.replicate_group else 1

    @property
    def groups(self) -> list[dist.ProcessGroup]:
        return [group for group in (self.shard_group, self.replicate_group) if group]


def ranks_of(mesh: DeviceMesh | None) -> Ranks:
    """Default mesh: all ranks in one row, on the accelerator if there is one.

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
    """The accelerator's, if there is one: a build with CUDA on a machine without a GPU has none."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return accelerator.type if accelerator else "cpu"


def current_device(device_type: str) -> torch.device:
    if device_type == "cpu":
        return torch.device("cpu")
    return torch.device(device_type, torch.get_device_module(device_type).current_device())


def divide_factors(ranks: Ranks, dtype: torch.dtype) -> tuple[float, float, dist.ReduceOp.RedOpType]:
    """(divide by before, divide by after, operation) with which a sum over all ranks becomes their mean in `dtype`.

    float32 and bfloat16 have room for any sum: let the collective average. float16 overflows at 65504 and loses what is
    below 6e-8, so about the root of the number of ranks is divided out before the sum, and the rest after it.
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
