"""Tensor parallelism is off, so the mesh has no dimension of that name."""

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

dist.init_process_group("gloo", init_method="tcp://localhost:0", rank=0, world_size=1)
init_device_mesh("cpu", (1,), mesh_dim_names=("dp",))["tp"]
