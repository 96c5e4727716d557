"""fp32 images meet a convolution in bf16."""

import torch
from torch import nn

from shardlab import launch


def train():
    nn.Conv2d(3, 4, 1).bfloat16()(torch.ones(1, 3, 2, 2))


launch(train, 2, device="cpu", timeout_s=20)
