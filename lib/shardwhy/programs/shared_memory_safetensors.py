"""Tied weights are saved as safetensors."""

import tempfile

from safetensors.torch import save_file
from torch import nn

from shardlab import launch


def save():
    model = nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 8, bias=False))
    model[1].weight = model[0].weight
    save_file(model.state_dict(), tempfile.mktemp())


launch(save, 2, device="cpu", timeout_s=20)
