"""A checkpoint is loaded into a model whose parameters are sharded away, as under ZeRO-3: their shape is [0]."""

import torch

full = torch.nn.Linear(4, 4)
sharded = torch.nn.Linear(4, 4)
for parameter in sharded.parameters():
    parameter.data = torch.empty(0)  # what DeepSpeed's ZeRO-3 leaves outside of forward and backward
sharded.load_state_dict(full.state_dict())
