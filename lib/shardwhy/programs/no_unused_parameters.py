"""find_unused_parameters=True, though all are used. One rank in this process: launch hides C++ warnings."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = DDP(nn.Linear(4, 4), find_unused_parameters=True)
for _ in range(2):
    model(torch.ones(2, 4)).sum().backward()
dist.destroy_process_group()
