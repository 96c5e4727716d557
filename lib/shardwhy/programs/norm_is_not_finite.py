"""clip_grad_norm_ is told to complain of a norm that is not finite."""

import torch
from torch import nn

from shardlab import launch


def train():
    model = nn.Linear(4, 4)
    (model(torch.ones(2, 4)) * torch.inf).sum().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)


launch(train, 2, device="cpu", timeout_s=20)
