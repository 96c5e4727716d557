"""The ways to hold one model and its optimizer, for tests of what does not depend on them."""

from tempfile import gettempdir

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.optim import Optimizer

from shardlab.cpu_offload_optimizer import CPUOffloadOptimizer
from shardlab.ddp import DDP
from shardlab.fsdp import fully_shard as our_fully_shard
from shardlab.fsdp.flat_parameter import FlatParameter
from shardlab.zero import ZeroRedundancyOptimizer
from shardnext.file_offload import FileOffloadOptimizer

LR = 1e-2


def single(model: nn.Module) -> tuple[nn.Module, Optimizer]:
    return model, torch.optim.AdamW(model.parameters(), lr=LR)


def ddp(model: nn.Module) -> tuple[nn.Module, Optimizer]:
    model = DDP(model)
    return model, torch.optim.AdamW(model.parameters(), lr=LR)


def torch_ddp(model: nn.Module) -> tuple[nn.Module, Optimizer]:
    model = nn.parallel.DistributedDataParallel(model)
    return model, torch.optim.AdamW(model.parameters(), lr=LR)


def zero_1(model: nn.Module) -> tuple[nn.Module, Optimizer]:
    return model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, bucket_cap_mb=0.01, lr=LR)


def zero_1_whole(model: nn.Module) -> tuple[nn.Module, Optimizer]:
    """Whole parameters dealt out to the ranks."""
    return model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, elementwise=False, lr=LR)


def torch_fsdp(model: nn.Module, **options) -> tuple[nn.Module, Optimizer]:
    for block in model.blocks:
        fully_shard(block, **options)
    fully_shard(model, **options)
    return model, torch.optim.AdamW(model.parameters(), lr=LR)


def fsdp(model: nn.Module) -> tuple[nn.Module, Optimizer]:
    for block in model.blocks:
        our_fully_shard(block)
    our_fully_shard(model)
    return model, torch.optim.AdamW(model.parameters(), lr=LR)


def flat_fsdp(model: nn.Module) -> tuple[nn.Module, Optimizer]:
    """A unit's parameters are one vector, cut anywhere."""
    for block in model.blocks:
        our_fully_shard(block, layout=FlatParameter)
    our_fully_shard(model, layout=FlatParameter)
    return model, torch.optim.AdamW(model.parameters(), lr=LR)


def torch_hybrid(model: nn.Module) -> tuple[nn.Module, Optimizer]:
    """Two replicas, each sharded over half of the ranks."""
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("replicate", "shard"))
    return torch_fsdp(model, mesh=mesh)


def cpu_offload(model: nn.Module) -> tuple[nn.Module, Optimizer]:
    model, _ = torch_fsdp(model)
    return model, CPUOffloadOptimizer(model.parameters(), torch.optim.AdamW, lr=LR)


def file_offload(model: nn.Module) -> tuple[nn.Module, Optimizer]:
    model, _ = torch_fsdp(model)
    return model, FileOffloadOptimizer(model.parameters(), torch.optim.AdamW, gettempdir(), 1 << 13, lr=LR)


SINGLE = (single,)
ANY_NUMBER = (ddp, torch_ddp, zero_1, zero_1_whole, fsdp, flat_fsdp, torch_fsdp, cpu_offload, file_offload)


def at(world_size: int) -> tuple:
    """Those that make sense on so many ranks."""
    if world_size == 1:
        return SINGLE
    return ANY_NUMBER + ((torch_hybrid,) if world_size % 2 == 0 and world_size > 2 else ())
