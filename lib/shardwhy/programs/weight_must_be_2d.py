"""FSDP1: a layer is called by itself, and its weight is a flat slice or empty."""

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from shardlab import launch


def train():
    model = FSDP(nn.Sequential(nn.Embedding(8, 4)), device_id=torch.device("cpu"), use_orig_params=True)
    model.module[0](torch.zeros(2, dtype=torch.long))


launch(train, 2, device="cpu", timeout_s=20)
