"""A compiled function multiplies matrices that do not fit: it fails while it is traced."""

import torch


@torch.compile(backend="eager")
def forward(x, weight):
    return x @ weight


forward(torch.randn(2, 3), torch.randn(4, 5))
