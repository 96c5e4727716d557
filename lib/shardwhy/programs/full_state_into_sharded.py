"""A whole state dict is loaded into a model whose parameters are DTensors."""

from torch import nn
from torch.distributed.fsdp import fully_shard

from shardlab import launch


def load():
    saved = nn.Linear(4, 4).state_dict()
    fully_shard(nn.Linear(4, 4)).load_state_dict(saved)


launch(load, 2, device="cpu", timeout_s=20)
