"""checkpoint() without use_reentrant."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from shardlab import launch


def train():
    checkpoint(nn.Linear(4, 4), torch.ones(2, 4, requires_grad=True))


launch(train, 2, device="cpu", timeout_s=20)
