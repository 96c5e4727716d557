"""FSDP1 is to send rank 0's weights to all ranks, and the model is still on the CPU."""

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

from shardlab import launch


def train():
    FullyShardedDataParallel(nn.Linear(4, 4), device_id=torch.device("cpu"), sync_module_states=True)


launch(train, 2, device="cpu", timeout_s=20)
