"""A sharded layer is called by itself, not through the model whose forward gathers its weight."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard

from shardlab import launch


def train():
    model = fully_shard(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
    F.linear(torch.ones(2, 4), model[0].weight)


launch(train, 2, device="cpu", timeout_s=20)
