"""A small model, a backward and two optimizers, for the regression tests of the engines."""

import torch
import torch.distributed as dist
from torch import nn

from shardlab.cpu_offload_optimizer import CPUOffloadOptimizer
from shardlab.zero import ZeroRedundancyOptimizer


def two_layers(dtype=torch.float32, width=4) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(width, width), nn.Linear(width, width)).to(dtype)


def backward(model: nn.Module, factor: float = 1.0, dtype=torch.float32, width=4) -> None:
    model(factor * (dist.get_rank() + 1) * torch.ones(2, width, dtype=dtype)).sum().backward()


def offloaded_sgd(model) -> torch.optim.Optimizer:
    return CPUOffloadOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)


def sharded_sgd(model) -> torch.optim.Optimizer:
    return ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
