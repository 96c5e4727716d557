"""A gradient comes with other strides than DDP's bucket has, as cuDNN returns them for a 1x1 convolution."""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from shardlab import launch


def train():
    model = DDP(nn.Conv2d(8, 4, 1))  # its weight's strides: 8, 1, 1, 1
    model.module.weight.register_hook(lambda grad: grad.as_strided(grad.shape, (8, 1, 8, 8)))
    model(torch.ones(2, 8, 5, 5)).sum().backward()


launch(train, 2, device="cpu", timeout_s=20)
