"""Clipping: one gradient lies on a 2-D mesh (tensor parallel and FSDP), another on FSDP's mesh alone."""

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

from shardlab import launch


def train():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    parallelize_module(model[1], mesh["tp"], ColwiseParallel())
    fully_shard(model, mesh=mesh["dp"])
    model(torch.ones(2, 4)).sum().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)


launch(train, 4, device="cpu", timeout_s=20)
