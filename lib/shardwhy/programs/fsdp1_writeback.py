"""A parameter's data is replaced by another shape after FSDP1 has wrapped the model."""

import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from shardlab import launch


def train():
    model = FSDP(torch.nn.Linear(4, 4), use_orig_params=True, device_id=torch.device("cpu"))
    model.weight.data = torch.zeros(4, 6)
    model(torch.ones(1, 4))


launch(train, 2, device="cpu", timeout_s=20)
