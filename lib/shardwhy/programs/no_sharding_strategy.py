"""An operation without a rule for shards."""

import torch
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

from shardlab import launch


def train():
    mesh = init_device_mesh("cpu", (2,))
    torch.nonzero(distribute_tensor(torch.eye(4), mesh, [Shard(0)]))


launch(train, 2, device="cpu", timeout_s=20)
