"""GLOO_SOCKET_IFNAME names a network card that this machine does not have."""

import os

import torch.distributed as dist

os.environ["GLOO_SOCKET_IFNAME"] = "eth99"
dist.init_process_group("gloo", init_method="tcp://localhost:0", rank=0, world_size=1)
