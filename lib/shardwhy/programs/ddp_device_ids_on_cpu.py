"""device_ids for a model that is still on the CPU."""

from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from shardlab import launch


def train():
    DDP(nn.Linear(4, 4), device_ids=[0])


launch(train, 2, device="cpu", timeout_s=20)
