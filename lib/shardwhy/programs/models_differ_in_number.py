"""Rank 1 builds a model with one layer more."""

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from shardlab import launch


def train():
    layers = [nn.Linear(4, 4) for _ in range(1 + dist.get_rank())]
    DDP(nn.Sequential(*layers))


launch(train, 2, device="cpu", timeout_s=20)
