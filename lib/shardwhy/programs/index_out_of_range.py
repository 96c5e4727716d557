"""A token number that the embedding has no row for: what a GPU calls a device-side assert."""

import torch

embedding = torch.nn.Embedding(num_embeddings=100, embedding_dim=8)
embedding(torch.tensor([5, 100]))  # rows are 0 to 99
