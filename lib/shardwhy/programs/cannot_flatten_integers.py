"""FSDP1 meets a quantised weight, which is uint8."""

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from shardlab import launch


def train():
    model = nn.Linear(4, 4)
    model.weight = nn.Parameter(torch.zeros(8, 1, dtype=torch.uint8), requires_grad=False)
    FSDP(model, device_id=torch.device("cpu"))


launch(train, 2, device="cpu", timeout_s=20)
