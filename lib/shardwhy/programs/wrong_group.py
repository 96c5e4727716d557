"""Rank 1 takes part in a group of rank 0 alone: it asks for its rank there."""

import torch.distributed as dist

from shardlab import launch


def train():
    alone = dist.new_group([0])
    if dist.get_rank() == 0:
        dist.get_group_rank(alone, 1)


launch(train, 2, device="cpu", timeout_s=20)
