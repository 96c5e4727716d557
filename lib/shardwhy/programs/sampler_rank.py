"""A sampler gets a global rank and the number of ranks of one node."""

from torch.utils.data import DistributedSampler

DistributedSampler(range(100), num_replicas=8, rank=8)
