"""A sharded model is copied, as for a moving average of its weights."""

import copy

from torch import nn
from torch.distributed.fsdp import fully_shard

from shardlab import launch


def train():
    copy.deepcopy(fully_shard(nn.Linear(4, 4)))


launch(train, 2, device="cpu", timeout_s=20)
