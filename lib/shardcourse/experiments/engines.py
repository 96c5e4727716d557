"""torch's and our `fully_shard` for all ranks of a launch, on the device that they compute on.

Without a mesh, `fully_shard` takes a GPU wherever it sees one.
"""

import torch.distributed as dist
from torch import nn
from torch.distributed import fsdp
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import shardlab.fsdp
from shardlab import local_device


def all_ranks() -> DeviceMesh:
    """Return the mesh of all ranks in one row."""
    return init_device_mesh(local_device().type, (dist.get_world_size(),))


def torch_fully_shard(module: nn.Module, **options) -> fsdp.FSDPModule:
    """Call torch's `fully_shard` for all ranks."""
    return fsdp.fully_shard(module, mesh=all_ranks(), **options)


def shardlab_fully_shard(module: nn.Module, **options) -> nn.Module | list[nn.Module]:
    """Call shardlab's `fully_shard` for all ranks."""
    return shardlab.fsdp.fully_shard(module, mesh=all_ranks(), **options)
