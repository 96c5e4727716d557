"""FSDP1 flattens a bf16 and an fp32 weight into one tensor."""

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from shardlab import launch


def train():
    model = nn.Sequential(nn.Linear(4, 4).bfloat16(), nn.Linear(4, 4))
    FSDP(model, device_id=torch.device("cpu"))


launch(train, 2, device="cpu", timeout_s=20)
