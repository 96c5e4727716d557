"""A submodule's forward runs before the root's, so it believes to be the root."""

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from shardlab import launch


def train():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    for unit in (*model, model):
        fully_shard(unit)
    model[0](torch.ones(2, 4))
    model(torch.ones(2, 4))


launch(train, 2, device="cpu", timeout_s=20)
