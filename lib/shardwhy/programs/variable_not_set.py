"""A script for torchrun is started with python."""

import os

import torch.distributed as dist

for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
    os.environ.pop(name, None)
dist.init_process_group("gloo")
