"""Each step passes another text, and each one is compiled anew."""

import torch

from shardlab import launch


def forward(x, name):
    return x + 1 if name == "layer 7" else x - 1


def train():
    compiled = torch.compile(forward, backend="eager")
    for step in range(12):
        compiled(torch.ones(2), f"layer {step}")


launch(train, 1, device="cpu", timeout_s=25)
