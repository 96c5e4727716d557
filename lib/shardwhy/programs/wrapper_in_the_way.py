"""A function that checks the class of the model gets the DDP wrapper."""

import torch
from torch.nn.parallel import DistributedDataParallel

from shardlab import launch


def evaluate(model):
    if not isinstance(model, torch.nn.Linear):
        raise TypeError(f"expected a Linear, but got {type(model)}")


def train():
    evaluate(DistributedDataParallel(torch.nn.Linear(4, 4)))


launch(train, 2, device="cpu", timeout_s=20)
