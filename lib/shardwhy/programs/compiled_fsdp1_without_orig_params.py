"""FSDP1 in its default form (use_orig_params=False) is compiled."""

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from shardlab import launch


def train():
    model = FSDP(nn.Sequential(nn.Linear(4, 4)), device_id=torch.device("cpu"))
    torch.compile(model, backend="eager", fullgraph=True)(torch.ones(2, 4))


launch(train, 2, device="cpu", timeout_s=25)
