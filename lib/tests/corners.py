"""A small model, a backward and two optimizers, for corners in which something is easily another than torch's."""

import torch
import torch.distributed as dist
from torch import nn

from shardlab.parallel.offload import CPUOffloadOptimizer
from shardlab.parallel.zero import ZeroRedundancyOptimizer


def two_layers(dtype=torch.float32, width=4) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(width, width), nn.Linear(width, width)).to(dtype)


def backward(model: nn.Module, factor: float = 1.0, dtype=torch.float32, width=4) -> None:
    model(factor * (dist.get_rank() + 1) * torch.ones(2, width, dtype=dtype)).sum().backward()


def offloaded(model) -> torch.optim.Optimizer:
    return CPUOffloadOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)


def zero_1(model) -> torch.optim.Optimizer:
    return ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
