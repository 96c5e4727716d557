"""Two GPUs are given as one device."""

import torch

torch.ones(2, device=torch.device("cuda:0,1"))
