"""A collective on a tensor whose device the process group has no backend for."""

import torch
import torch.distributed as dist

from shardlab import launch


def reduce():
    group = dist.new_group(backend="cuda:gloo")  # gloo for tensors on GPUs only
    dist.all_reduce(torch.ones(1), group=group)


if __name__ == "__main__":
    launch(reduce, 2, device="cpu")
