"""The last batch of the epoch has one sample."""

import torch
from torch.utils.data import DataLoader

norm = torch.nn.BatchNorm1d(4)
for batch in DataLoader(torch.randn(9, 4), batch_size=4):
    norm(batch)
