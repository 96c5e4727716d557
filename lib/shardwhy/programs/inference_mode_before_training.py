"""FSDP1 validates in inference mode before its first training step."""

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

from shardlab import launch


def train():
    model = FullyShardedDataParallel(nn.Linear(4, 4), device_id=torch.device("cpu"))
    with torch.inference_mode():
        model(torch.ones(2, 4))
    model(torch.ones(2, 4))


launch(train, 2, device="cpu", timeout_s=20)
