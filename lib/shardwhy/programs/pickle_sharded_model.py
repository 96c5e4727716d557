"""torch.save of the whole sharded model, not of its state dict."""

import io

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from shardlab import launch


def save():
    torch.save(fully_shard(nn.Linear(4, 4)), io.BytesIO())


launch(save, 2, device="cpu", timeout_s=20)
