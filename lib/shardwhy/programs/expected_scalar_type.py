"""Attention scores: the queries are bf16, the keys come from a cache in fp32."""

import torch

from shardlab import launch


def train():
    queries, keys = torch.ones(1, 2, 4, dtype=torch.bfloat16), torch.ones(1, 4, 2)
    torch.bmm(queries, keys)


launch(train, 2, device="cpu", timeout_s=20)
