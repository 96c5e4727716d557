"""DDP's state dict is loaded into the bare model."""

from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from shardlab import launch


def load():
    saved = DDP(nn.Sequential(nn.Linear(4, 4))).state_dict()
    nn.Sequential(nn.Linear(4, 4)).load_state_dict(saved)


launch(load, 2, device="cpu", timeout_s=20)
