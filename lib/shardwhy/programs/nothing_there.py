"""All parameters are frozen when the optimizer is built."""

import torch

model = torch.nn.Linear(4, 4).requires_grad_(False)
torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
