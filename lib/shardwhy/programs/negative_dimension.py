"""Rank 0 broadcasts a tensor, while rank 1 waits for the size of an object: it takes the tensor for the size."""

import torch
import torch.distributed as dist

from shardlab import launch


def train():
    if dist.get_rank() == 0:
        dist.broadcast(torch.tensor([-686245457367107674]), src=0)
        dist.barrier()
    else:
        dist.broadcast_object_list([None], src=0)


launch(train, 2, device="cpu", timeout_s=20)
