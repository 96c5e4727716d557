"""Samples of different lengths in one batch."""

import torch
from torch.utils.data import DataLoader

samples = [torch.zeros(5), torch.zeros(7)]
list(DataLoader(samples, batch_size=2))
