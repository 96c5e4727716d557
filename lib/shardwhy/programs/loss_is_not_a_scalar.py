"""backward() on the losses of two GPUs, as DataParallel returns them."""

import torch

losses = torch.nn.Linear(4, 1)(torch.randn(2, 4)).squeeze(1)
losses.backward()
