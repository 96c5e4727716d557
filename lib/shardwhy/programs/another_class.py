"""The model stands where a scheduler wants the optimizer."""

import torch

model = torch.nn.Linear(4, 2)
torch.optim.lr_scheduler.StepLR(model, 1)
