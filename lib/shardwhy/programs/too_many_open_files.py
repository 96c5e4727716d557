"""Tensors from workers are kept, each with a file descriptor, until none is left."""

import resource

import torch
from torch.utils.data import DataLoader

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    kept = list(DataLoader(torch.zeros(1000, 10), batch_size=1, num_workers=2))
