"""Only rank 0 builds the model, and every rank asks it for its parameters."""

import torch
import torch.distributed as dist

from shardlab import launch


def train():
    model = torch.nn.Linear(4, 4) if dist.get_rank() == 0 else None
    return sum(p.numel() for p in model.parameters())


launch(train, 2, device="cpu", timeout_s=20)
