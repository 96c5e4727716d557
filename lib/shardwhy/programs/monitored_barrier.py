"""monitored_barrier names the rank that does not come."""

import datetime
import time

import torch.distributed as dist

from shardlab import launch


def one_is_late():
    if dist.get_rank() == 1:
        time.sleep(10)
    dist.monitored_barrier(timeout=datetime.timedelta(seconds=2))


if __name__ == "__main__":
    launch(one_is_late, 2, device="cpu")
