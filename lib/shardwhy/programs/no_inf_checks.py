"""A scaler's step without any gradient: the loss was never scaled, or all gradients are None."""

import torch
from torch import nn

from shardlab import launch


def train():
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(()))
    scaler.step(torch.optim.SGD(nn.Linear(4, 4).parameters()))


launch(train, 2, device="cpu", timeout_s=20)
