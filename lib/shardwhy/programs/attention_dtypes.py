"""Queries and keys are rotated with a table in fp32, which makes them fp32; the values stay bf16."""

import torch
import torch.nn.functional as F

from shardlab import launch


def train():
    q, k, v = torch.ones(3, 1, 2, 8, 4, dtype=torch.bfloat16)
    cos = torch.ones(8, 4)
    F.scaled_dot_product_attention(q * cos, k * cos, v)


launch(train, 2, device="cpu", timeout_s=20)
