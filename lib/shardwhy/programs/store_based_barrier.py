"""Rank 0 makes a group of its own without the other rank, and a barrier at its end waits for all ranks."""

import datetime
import os

import torch.distributed as dist

from shardlab import launch


def group_of_rank_0():
    os.environ["TORCH_DIST_INIT_BARRIER"] = "1"  # as older versions of PyTorch always do
    if dist.get_rank() == 0:
        dist.new_group([0], timeout=datetime.timedelta(seconds=3))


if __name__ == "__main__":
    launch(group_of_rank_0, 2, device="cpu")
