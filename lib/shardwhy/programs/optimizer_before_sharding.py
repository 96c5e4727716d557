"""The optimizer keeps the whole parameters that fully_shard has replaced, so no step changes the model."""

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from shardlab import launch


def train():
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fully_shard(model)
    for _ in range(3):
        loss = model(torch.ones(2, 4)).pow(2).sum()
        loss.backward()
        optimizer.step()
        print(f"loss does not change: {loss.item():.6f}")
    assert not {id(p) for g in optimizer.param_groups for p in g["params"]} & {id(p) for p in model.parameters()}


launch(train, 2, device="cpu", timeout_s=20)
