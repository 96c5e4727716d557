"""Rank 1 ends in the middle of the training; rank 0 loses its connection to it."""

import os

import torch
import torch.distributed as dist

from shardlab import launch


def one_ends():
    dist.barrier()
    if dist.get_rank() == 1:
        os._exit(0)
    try:
        dist.all_reduce(torch.ones(4))
    except RuntimeError as error:
        print(error, flush=True)


if __name__ == "__main__":
    launch(one_ends, 2, device="cpu")
