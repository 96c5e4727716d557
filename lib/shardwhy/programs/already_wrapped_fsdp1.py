"""FSDP1 with a wrap policy, around a model that has an FSDP1 layer already."""

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from shardlab import launch


def train():
    cpu = torch.device("cpu")
    model = nn.Sequential(FSDP(nn.Linear(4, 4), device_id=cpu), nn.Linear(4, 4))
    FSDP(model, auto_wrap_policy=ModuleWrapPolicy({nn.Linear}), device_id=cpu)


launch(train, 2, device="cpu", timeout_s=20)
