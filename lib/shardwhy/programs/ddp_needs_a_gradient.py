"""A wholly frozen model (a teacher, a reference model) is wrapped in DDP."""

from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from shardlab import launch


def train():
    DDP(nn.Linear(4, 4).requires_grad_(False))


launch(train, 2, device="cpu", timeout_s=20)
