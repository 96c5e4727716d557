"""With TORCH_DISTRIBUTED_DEBUG=DETAIL, one rank calls another collective than the others."""

import os

import torch
import torch.distributed as dist

from shardlab import launch


def mixed():
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
    dist.set_debug_level_from_env()
    group = dist.new_group()
    x = torch.ones(4)
    dist.all_reduce(x, group=group) if dist.get_rank() else dist.broadcast(x, 0, group=group)


if __name__ == "__main__":
    launch(mixed, 2, device="cpu")
