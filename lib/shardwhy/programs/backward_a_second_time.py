"""Two losses share a part of the graph, and each calls backward."""

import torch
from torch import nn

from shardlab import launch


def train():
    hidden = nn.Linear(4, 4)(torch.ones(2, 4)).exp()
    hidden.sum().backward()
    hidden.mean().backward()


launch(train, 2, device="cpu", timeout_s=20)
