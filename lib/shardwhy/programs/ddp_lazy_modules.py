"""A lazy layer has no weights before its first forward."""

from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from shardlab import launch


def train():
    DDP(nn.LazyLinear(4))


launch(train, 2, device="cpu", timeout_s=20)
