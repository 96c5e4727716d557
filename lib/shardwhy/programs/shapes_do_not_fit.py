"""With tensor parallelism a rank has half of the features, and the reshape counts with all 8 heads."""

import torch

from shardlab import launch


def train():
    ranks, heads, width = 2, 8, 16
    local = torch.ones(1, 5, heads * width // ranks)
    local.view(1, 5, heads, width)


launch(train, 2, device="cpu", timeout_s=20)
