"""Reentrant checkpointing hides a layer from DDP: it is marked as unused, and then its gradient comes."""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint

from shardlab import launch


class Model(nn.Linear):
    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=True)


def train():
    model = DDP(Model(4, 4), find_unused_parameters=True)
    model(torch.ones(2, 4, requires_grad=True)).sum().backward()


launch(train, 2, device="cpu", timeout_s=20)
