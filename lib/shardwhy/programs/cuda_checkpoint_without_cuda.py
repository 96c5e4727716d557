"""A file's tensors belong on a GPU, and this process sees none."""

import io

import torch

from shardlab import launch


def load():
    file = io.BytesIO()
    torch.save(torch.ones(4), file)
    file.seek(0)
    torch.load(file, map_location="cuda")


launch(load, 2, device="cpu", timeout_s=20)
