"""A module has a backward hook, as a wrapper sets it, and its output is changed in place."""

import torch

layer = torch.nn.Linear(4, 4)
layer.register_full_backward_hook(lambda *_: None)
out = layer(torch.randn(2, 4, requires_grad=True))
out += 1
