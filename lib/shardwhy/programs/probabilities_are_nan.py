"""Sampling from logits that have become nan."""

import torch

from shardlab import launch


def generate():
    torch.multinomial(torch.full((4,), torch.nan).softmax(0), 1)


launch(generate, 2, device="cpu", timeout_s=20)
