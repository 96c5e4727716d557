"""The model is built on the meta device and sharded, but never given memory and values."""

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from shardlab import launch


def train():
    with torch.device("meta"):
        model = nn.Linear(4, 4)
    fully_shard(model)(torch.ones(2, 4))


launch(train, 2, device="cpu", timeout_s=20)
