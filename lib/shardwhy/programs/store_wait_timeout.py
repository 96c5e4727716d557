"""A rank waits for a key that the other rank never writes: new_group on one rank only."""

import datetime

import torch.distributed as dist

from shardlab import launch


def group_of_rank_0():
    if dist.get_rank() == 0:
        dist.new_group([0, 1], timeout=datetime.timedelta(seconds=3))


if __name__ == "__main__":
    launch(group_of_rank_0, 2, device="cpu")
