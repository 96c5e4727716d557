"""fullgraph=True, and the path depends on a tensor's value."""

import torch

from shardlab import launch


def forward(x):
    return x + 1 if x.sum() > 0 else x - 1


def train():
    torch.compile(forward, backend="eager", fullgraph=True)(torch.ones(2))


launch(train, 2, device="cpu", timeout_s=25)
