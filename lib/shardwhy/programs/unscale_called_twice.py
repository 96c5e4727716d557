"""unscale_ in every micro-batch, but update only after the last."""

import torch
from torch import nn

from shardlab import launch


def train():
    model, scaler = nn.Linear(4, 4), torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(model.parameters())
    for _ in range(2):
        scaler.scale(model(torch.ones(2, 4)).sum()).backward()
        scaler.unscale_(optimizer)


launch(train, 2, device="cpu", timeout_s=20)
