"""torch.autograd.grad through a reentrant checkpoint."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from shardlab import launch


def train():
    x = torch.ones(2, 4, requires_grad=True)
    torch.autograd.grad(checkpoint(nn.Linear(4, 4), x, use_reentrant=True).sum(), x)


launch(train, 2, device="cpu", timeout_s=20)
