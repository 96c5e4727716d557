"""Two forwards before one backward: the second one changes a buffer that the first one has saved."""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from shardlab import launch


class Model(nn.Linear):
    def __init__(self):
        super().__init__(4, 4)
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x):
        return super().forward(x) * self.scale.mul_(0.9)


def train():
    model = DDP(Model())
    (model(torch.ones(2, 4)) + model(torch.ones(2, 4))).sum().backward()


launch(train, 2, device="cpu", timeout_s=20)
