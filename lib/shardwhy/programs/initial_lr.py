"""A scheduler is resumed by last_epoch, with a fresh optimizer."""

import torch
from torch import nn

from shardlab import launch


def resume():
    optimizer = torch.optim.AdamW(nn.Linear(4, 4).parameters())
    torch.optim.lr_scheduler.StepLR(optimizer, step_size=10, last_epoch=100)


launch(resume, 2, device="cpu", timeout_s=20)
