"""A compiled model's state dict is loaded into the bare model."""

import torch
from torch import nn

from shardlab import launch


def load():
    saved = torch.compile(nn.Linear(4, 4)).state_dict()
    nn.Linear(4, 4).load_state_dict(saved)


launch(load, 2, device="cpu", timeout_s=20)
