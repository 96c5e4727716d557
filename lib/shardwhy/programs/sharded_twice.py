"""fully_shard is applied twice to one module."""

from torch import nn
from torch.distributed.fsdp import fully_shard

from shardlab import launch


def train():
    model = fully_shard(nn.Linear(4, 4))
    fully_shard(model)


launch(train, 2, device="cpu", timeout_s=20)
