"""The optimizer's state was saved when a layer was frozen that is trained now."""

import torch
from torch import nn

from shardlab import launch


def load():
    model = nn.Linear(4, 4)
    saved = torch.optim.AdamW([model.weight]).state_dict()
    torch.optim.AdamW([model.weight, model.bias]).load_state_dict(saved)


launch(load, 2, device="cpu", timeout_s=20)
