"""Ranks call the same collective with tensors of different sizes."""

import torch
import torch.distributed as dist

from shardlab import launch


def sizes():
    dist.all_reduce(torch.ones(1000 if dist.get_rank() else 2000))


if __name__ == "__main__":
    launch(sizes, 2, device="cpu")
