"""The optimizer's state was saved with one group of parameters; now there are two."""

import torch
from torch import nn

from shardlab import launch


def load():
    model = nn.Linear(4, 4)
    saved = torch.optim.AdamW([model.weight, model.bias]).state_dict()
    torch.optim.AdamW([{"params": [model.weight]}, {"params": [model.bias]}]).load_state_dict(saved)


launch(load, 2, device="cpu", timeout_s=20)
