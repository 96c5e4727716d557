"""A check says nothing but its condition."""

import torch

model = torch.nn.Linear(4, 4)
model.is_sharded = False
assert model.is_sharded
