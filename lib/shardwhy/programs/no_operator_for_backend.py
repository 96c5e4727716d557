"""A view of a sparse tensor: there is none."""

import torch

torch.eye(2).to_sparse().view(4)
