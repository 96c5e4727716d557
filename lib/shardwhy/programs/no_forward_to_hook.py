"""A list of layers has no forward, so FSDP2 has nowhere to put its hooks."""

from torch import nn
from torch.distributed.fsdp import fully_shard

from shardlab import launch


def train():
    fully_shard(nn.ModuleList([nn.Linear(4, 4)]))


launch(train, 2, device="cpu", timeout_s=20)
