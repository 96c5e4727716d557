"""Reentrant checkpointing of a trainable layer whose input needs no gradient (a frozen embedding)."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from shardlab import launch


def train():
    layer = nn.Linear(4, 4)
    out = checkpoint(layer, torch.ones(2, 4), use_reentrant=True)
    print("the output requires a gradient:", out.requires_grad)


launch(train, 2, device="cpu", timeout_s=20)
