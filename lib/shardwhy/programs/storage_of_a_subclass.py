"""A DTensor has no memory of its own: the memory is that of its local tensor."""

import torch
import torch.distributed as dist
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

dist.init_process_group("gloo", init_method="tcp://localhost:0", rank=0, world_size=1)
whole = distribute_tensor(torch.ones(4, 2), init_device_mesh("cpu", (1,)), [Shard(0)])
whole.untyped_storage().resize_(0)
