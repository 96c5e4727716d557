"""static_graph=True, but the second iteration uses another layer than the first."""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from shardlab import launch


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

    def forward(self, x, layer):
        return self.layers[layer](x)


def train():
    model = DDP(Model(), static_graph=True)
    for iteration in range(3):
        model(torch.ones(2, 4), min(iteration, 1)).sum().backward()


launch(train, 2, device="cpu", timeout_s=20)
