"""A tensor on the CPU that is larger than what the process may have."""

import resource

import torch

resource.setrlimit(resource.RLIMIT_AS, (64 * 2**30, resource.getrlimit(resource.RLIMIT_AS)[1]))
torch.empty(2**40, dtype=torch.uint8)  # 1 TiB, and the process may have 64 GiB
