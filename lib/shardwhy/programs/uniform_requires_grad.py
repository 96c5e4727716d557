"""FSDP1 flattens a frozen and a trainable weight into one tensor."""

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from shardlab import launch


def train():
    model = nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 4))
    FSDP(model, device_id=torch.device("cpu"))


launch(train, 2, device="cpu", timeout_s=20)
