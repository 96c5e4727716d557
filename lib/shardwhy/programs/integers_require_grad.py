"""An 8-bit weight is made a parameter that learns."""

import torch

torch.nn.Parameter(torch.zeros(4, dtype=torch.int8))
