"""FSDP1 wraps a block that holds a frozen and a trainable layer, as LoRA makes them."""

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from shardlab import launch


def train():
    block = nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 4))
    policy = ModuleWrapPolicy({nn.Sequential})
    FSDP(nn.ModuleList([block]), auto_wrap_policy=policy, device_id=torch.device("cpu"))


launch(train, 2, device="cpu", timeout_s=20)
