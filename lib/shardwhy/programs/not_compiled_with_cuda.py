"""A tensor goes to the GPU, and this PyTorch is the one for CPUs."""

import torch

torch.ones(1).cuda()
