"""Rank 0 waits in a collective for rank 1, which does something else."""

import datetime
import time

import torch
import torch.distributed as dist

from shardlab import launch


def one_is_late():
    group = dist.new_group(timeout=datetime.timedelta(seconds=2))
    time.sleep(10 * dist.get_rank())
    dist.all_reduce(torch.ones(4), group=group)


if __name__ == "__main__":
    launch(one_is_late, 2, device="cpu")
