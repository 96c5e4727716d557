"""The address of a sharded parameter's memory: the wrapper has none."""

import torch
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

from shardlab import launch


def train():
    mesh = init_device_mesh("cpu", (2,))
    distribute_tensor(torch.ones(4), mesh, [Shard(0)]).untyped_storage().data_ptr()


launch(train, 2, device="cpu", timeout_s=20)
