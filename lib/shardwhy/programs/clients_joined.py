"""init_process_group of a group of two, in which one rank is missing."""

import datetime

import torch.distributed as dist

dist.init_process_group(
    "gloo", init_method="tcp://localhost:0", rank=0, world_size=2, timeout=datetime.timedelta(seconds=3)
)
