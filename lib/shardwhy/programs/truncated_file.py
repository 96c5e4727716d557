"""A file ends in the middle: the rank that wrote it was killed, or the disk was full."""

import io

import torch

from shardlab import launch


def load():
    file = io.BytesIO()
    torch.save(torch.ones(1000), file)
    torch.load(io.BytesIO(file.getvalue()[:2000]))


launch(load, 2, device="cpu", timeout_s=20)
