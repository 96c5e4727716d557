"""Six heads for a width of 32."""

import torch

torch.nn.MultiheadAttention(embed_dim=32, num_heads=6)
