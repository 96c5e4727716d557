"""fp32 activations meet bf16 weights outside autocast."""

import torch
from torch import nn

from shardlab import launch


def train():
    nn.Linear(4, 4).bfloat16()(torch.ones(2, 4))


launch(train, 2, device="cpu", timeout_s=20)
