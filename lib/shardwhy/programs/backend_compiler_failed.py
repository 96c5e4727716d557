"""A backend raises while it compiles."""

import torch

from shardlab import launch


def backend(graph, inputs):
    raise NotImplementedError("no kernel for this operation")


def train():
    torch.compile(torch.sin, backend=backend)(torch.ones(2))


launch(train, 2, device="cpu", timeout_s=25)
