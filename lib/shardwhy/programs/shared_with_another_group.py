"""Tied weights: the embedding and the head are sharded separately."""

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from shardlab import launch


def train():
    model = nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 8, bias=False))
    model[1].weight = model[0].weight
    for unit in (model[0], model[1], model):
        fully_shard(unit)
    model(torch.zeros(2, dtype=torch.long))


launch(train, 2, device="cpu", timeout_s=20)
