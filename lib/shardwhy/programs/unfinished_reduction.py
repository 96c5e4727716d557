"""One layer gets no gradient, and the next forward of DDP finds it."""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from shardlab import launch


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.used(x)


def train():
    model = DDP(Model())
    for _ in range(2):
        model(torch.ones(2, 4)).sum().backward()


launch(train, 2, device="cpu", timeout_s=20)
