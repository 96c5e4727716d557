"""Gradients are reduced in bf16 and given back to fp32 parameters without a cast."""

import torch
import torch.distributed as dist

from shardlab import launch


def train():
    model = torch.nn.Linear(4, 4)
    model(torch.ones(2, 4)).sum().backward()
    for p in model.parameters():
        reduced = p.grad.bfloat16()
        dist.all_reduce(reduced)
        p.grad = reduced


launch(train, 2, device="cpu", timeout_s=20)
