"""Is everybody there? Every rank says where it is and on what, and all ranks' ones are added up.

`python lib/cluster/hello.py` starts 4 ranks on this machine, `torchrun --nproc-per-node=8 lib/cluster/hello.py` its 8;
`sbatch --nodes=2 lib/cluster/nodes.sbatch lib/cluster/hello.py`, one on each GPU of two nodes.
"""

import os
import socket

import torch
import torch.distributed as dist

from shardlab import launch, local_device


def hello() -> str:
    there = torch.ones(1, device=local_device())
    dist.all_reduce(there)
    return f"rank {dist.get_rank()} on {socket.gethostname()}, {local_device()}: {int(there)} are there"


if __name__ == "__main__":
    lines = launch(hello, int(os.environ.get("WORLD_SIZE", 4)))
    if os.environ.get("RANK", "0") == "0":  # under torchrun every rank comes by here
        print(*lines, sep="\n")
