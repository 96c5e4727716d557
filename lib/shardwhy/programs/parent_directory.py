"""Rank 1 saves into a folder that only rank 0 makes, and rank 0 has not made it yet."""

import tempfile

import torch
import torch.distributed as dist

from shardlab import launch


def train(folder):
    if dist.get_rank() == 1:
        torch.save(torch.zeros(1), f"{folder}/step_100/rank_1.pt")


launch(train, 2, tempfile.mkdtemp(), device="cpu", timeout_s=20)
