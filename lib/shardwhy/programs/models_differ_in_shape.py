"""Rank 1 builds a wider layer, as with a vocabulary of its own."""

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from shardlab import launch


def train():
    DDP(nn.Linear(4, 4 + dist.get_rank()))


launch(train, 2, device="cpu", timeout_s=20)
