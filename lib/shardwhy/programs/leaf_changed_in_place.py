"""A weight is changed in place while autograd records."""

from torch import nn

from shardlab import launch


def train():
    nn.Linear(4, 4).weight.mul_(0.5)


launch(train, 2, device="cpu", timeout_s=20)
