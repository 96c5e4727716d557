"""DistributedSampler without set_epoch: the same order in each epoch."""

import torch
from torch.utils.data import DataLoader, DistributedSampler

sampler = DistributedSampler(range(8), num_replicas=2, rank=0)
loader = DataLoader(torch.arange(8), sampler=sampler, batch_size=4)
epochs = [[batch.tolist() for batch in loader] for _ in range(2)]  # a call of sampler.set_epoch(epoch) is missing
if epochs[0] == epochs[1]:
    print("the same order in each epoch:", epochs)
