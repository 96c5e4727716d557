"""A scaler, and weights that were loaded in fp16: their gradients are fp16, too."""

import torch
from torch import nn

from shardlab import launch


def train():
    model, scaler = nn.Linear(4, 4).half(), torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(model.parameters())
    scaler.scale(model(torch.ones(2, 4).half()).sum()).backward()
    scaler.step(optimizer)


launch(train, 2, device="cpu", timeout_s=20)
