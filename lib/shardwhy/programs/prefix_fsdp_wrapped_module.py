"""FSDP1: names from named_parameters() have the wrapper in them, those of state_dict() do not."""

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from shardlab import launch


def load():
    sharded = nn.Sequential(FSDP(nn.Linear(4, 4), device_id=torch.device("cpu"), use_orig_params=True))
    saved = {name: weight.detach() for name, weight in sharded.named_parameters()}
    nn.Sequential(nn.Linear(4, 4)).load_state_dict(saved)


launch(load, 2, device="cpu", timeout_s=20)
