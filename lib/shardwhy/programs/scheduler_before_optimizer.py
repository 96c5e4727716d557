"""The scaler skips the first step, since its scale is too large, and the scheduler steps all the same."""

import torch
from torch import nn

from shardlab import launch


def train():
    model, scaler = nn.Linear(4, 4), torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    scaler.scale((model(torch.ones(2, 4)) * torch.inf).sum()).backward()
    scaler.step(optimizer)
    scheduler.step()


launch(train, 2, device="cpu", timeout_s=20)
