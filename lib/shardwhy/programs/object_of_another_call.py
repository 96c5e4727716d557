"""Rank 0 sends two tensors, and rank 1 expects the size and the bytes of an object: it unpickles zeros."""

import traceback

import torch
import torch.distributed as dist

from shardlab import launch


def train():
    try:
        if dist.get_rank() == 0:
            dist.broadcast(torch.tensor([8]), 0)
            dist.broadcast(torch.zeros(8, dtype=torch.uint8), 0)
        else:
            dist.broadcast_object_list([None], 0)
    except Exception:
        traceback.print_exc()


launch(train, 2, device="cpu", timeout_s=20)
