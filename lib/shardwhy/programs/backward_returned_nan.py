"""Anomaly mode names the function whose gradient is nan first."""

import torch

from shardlab import launch


def train():
    torch.autograd.set_detect_anomaly(True)
    x = torch.zeros(2, requires_grad=True)
    (x.sqrt() * x).sum().backward()


launch(train, 2, device="cpu", timeout_s=20)
