"""The source of a scatter gives no list of tensors."""

import torch
import torch.distributed as dist

from shardlab import launch


def train():
    pieces = [torch.ones(2), torch.ones(2)] if dist.get_rank() == 1 else None
    dist.scatter(torch.empty(2), pieces, src=0)


launch(train, 2, device="cpu", timeout_s=20)
