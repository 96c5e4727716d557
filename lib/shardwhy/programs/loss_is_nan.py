"""fp16 in the forward: the logits pass 65,504, become inf, and the loss is nan."""

import torch

from shardlab import launch


def train():
    x = torch.full((2, 4), 300.0, dtype=torch.float16)
    logits = x * x
    loss = (logits - logits.amax(dim=-1, keepdim=True)).sum()
    print(f"step 1, loss: {loss.item()}")


launch(train, 2, device="cpu", timeout_s=20)
