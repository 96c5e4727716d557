"""Sizes of a run for each kind of machine: the same notebook runs on a laptop, on one GPU and on a node of eight.

A tier sets world size, device, model, batch and sequence length; nothing else differs between tiers.
"""

import os
from dataclasses import dataclass

import torch

from shardlab.model import ModelConfig, preset


@dataclass(frozen=True)
class Tier:
    name: str
    world_size: int
    device: str  # "cpu" or "cuda"
    model: ModelConfig
    micro_batch: int  # samples per rank and step
    seq_len: int


TIERS = {
    "cpu": Tier("cpu", 4, "cpu", preset("1M"), micro_batch=2, seq_len=64),
    "cpu8": Tier("cpu8", 8, "cpu", preset("1M"), micro_batch=2, seq_len=64),  # as many ranks as gpu8, without GPUs
    "gpu1": Tier("gpu1", 4, "cuda", preset("125M"), micro_batch=4, seq_len=512),
    "gpu4": Tier("gpu4", 4, "cuda", preset("1B"), micro_batch=2, seq_len=2048),
    "gpu8": Tier("gpu8", 8, "cuda", preset("1B"), micro_batch=2, seq_len=2048),
}


def detect(name: str | None = None) -> Tier:
    """Return the tier called `name`, else the one in SHARDLAB_TIER, else the largest for this machine's GPUs."""
    name = name or os.environ.get("SHARDLAB_TIER") or _largest()
    if name not in TIERS:
        raise ValueError(f"no tier {name!r}; there are {', '.join(TIERS)}")
    tier = TIERS[name]
    if tier.device == "cuda" and not torch.cuda.is_available():
        raise RuntimeError(f"tier {name!r} needs a GPU and torch sees none; use tier='cpu'")
    return tier


def _largest() -> str:
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return "gpu8" if gpus >= 8 else "gpu4" if gpus >= 4 else "gpu1" if gpus else "cpu"
