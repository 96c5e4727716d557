"""SyncBatchNorm in training on CPU tensors."""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from shardlab import launch


def train():
    model = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
    DDP(model)(torch.ones(3, 4))


launch(train, 2, device="cpu", timeout_s=20)
