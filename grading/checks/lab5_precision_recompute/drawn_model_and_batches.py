"""What lab 5 trains: the tier's shape of the model, its weights, its batches and its loss, drawn for a seed."""

import random

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from grading.checks.lab5_precision_recompute.notebook_model_and_price_list import Reader
from shardlab import local_device
from shardlab.text_batches import batch
from shardlab.tier import TIERS

VOCAB = 256
SMALL = dict(dim=64, n_heads=8, hidden=(96, 160, 224, 288, 352), samples=2, seq_len=64)
LARGE = dict(dim=512, n_heads=8, hidden=(768, 1280, 1792, 2304, 2816), samples=4, seq_len=512)
SHAPES = {name: LARGE if tier.gpus else SMALL for name, tier in TIERS.items()}
DROPOUT, LR = 0.1, 3e-3


def shape_of(seed: int, tier: str) -> dict:
    """Return the tier's shape, with the blocks' widths in an order drawn for this seed."""
    shape = SHAPES[tier]
    return shape | {"hidden": random.Random(seed).sample(shape["hidden"], len(shape["hidden"]))}


def build(seed: int, shape: dict, dropout: float = 0.0) -> Reader:
    """Build the model with the same weights on every rank, in float32."""
    torch.manual_seed(seed)
    return Reader(VOCAB, shape["dim"], shape["n_heads"], shape["hidden"], dropout)


def batch_of(
    seed: int, step: int, shape: dict, rank: int, world_size: int, device: torch.device | str | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return tokens, targets, and positions on `device`, or this rank's; positions lie far inside a long document."""
    samples, seq_len, device = shape["samples"], shape["seq_len"], device or local_device()
    tokens, targets = batch(
        seed, step, rank, world_size, global_batch=samples * world_size, seq_len=seq_len, device=device
    )
    start = 10_000 + 64 * random.Random(f"{seed} {step}").randrange(300)
    return tokens, targets, torch.arange(seq_len, device=device, dtype=torch.float32) + start


def loss_of(model: nn.Module, tokens: Tensor, targets: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    logits = model(tokens, positions)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten()), logits
