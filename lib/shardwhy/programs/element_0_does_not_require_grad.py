"""Every weight is frozen, so the loss has no graph."""

import torch
from torch import nn

from shardlab import launch


def train():
    nn.Linear(4, 4).requires_grad_(False)(torch.ones(2, 4)).sum().backward()


launch(train, 2, device="cpu", timeout_s=20)
