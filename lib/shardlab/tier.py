"""Sizes of a run for each kind of machine: the same notebook runs on a laptop, on one GPU and on a node of eight.

A tier sets the number of ranks, the device, the model, its batch and a memory budget; nothing else differs.
The GPU tiers are in a table, `tiers.json`, which the planner writes: `python -m shardplan.tiers`.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from shardlab.model import ModelConfig, preset

TABLE = "tiers.json"
MIB, GIB = 1 << 20, 1 << 30


@dataclass(frozen=True)
class Tier:
    name: str
    world_size: int
    device: str  # "cpu" or "cuda"
    model: ModelConfig
    micro_batch: int  # samples per rank and step
    seq_len: int
    budget_mib: float = 0.0  # of a rank that trains the model, where a lab sets a limit
    gpus: int = 0  # that the ranks use
    memory_bytes: int = 0  # that each of these GPUs must have


@dataclass(frozen=True)
class Card:
    """A GPU as torch reports it."""

    name: str
    memory_bytes: int
    capability: tuple[int, int]

    @property
    def has_bf16(self) -> bool:
        """Tell whether the card multiplies bf16 itself. Older ones emulate it (pytorch/pytorch#148322)."""
        return self.capability >= (8, 0)


def _gpu_tiers() -> dict[str, Tier]:
    rows = json.loads(Path(__file__).with_name(TABLE).read_text())["tiers"]
    return {
        name: Tier(
            name,
            row["world_size"],
            "cuda",
            preset(row["model"]),
            row["micro_batch"],
            row["seq_len"],
            row["budget_mib"],
            row["gpus"],
            row["memory_mib"] * MIB,
        )
        for name, row in rows.items()
    }


TIERS = {
    "cpu": Tier("cpu", 4, "cpu", preset("1M"), micro_batch=2, seq_len=64, budget_mib=12.7),
    "cpu8": Tier("cpu8", 8, "cpu", preset("1M"), micro_batch=2, seq_len=64, budget_mib=12.7),  # ranks as on gpu8
    **_gpu_tiers(),
}


def detect(name: str | None = None) -> Tier:
    """Return the tier called `name`, else the one in SHARDLAB_TIER, else the largest that fits on this machine's GPUs.

    Prints a line if GPUs stay idle. Raises ValueError for an unknown name, and RuntimeError that says why this
    machine can't run a tier that was asked for.
    """
    name = name or os.environ.get("SHARDLAB_TIER")
    if name is None:
        name, words = choose(cards_here())
        if words:
            print(words)
    elif name not in TIERS:
        raise ValueError(f"no tier {name!r}; there are {', '.join(TIERS)}")
    elif TIERS[name].gpus and (problem := why_not(TIERS[name], cards := cards_here())):
        raise RuntimeError(f"tier {name!r} {problem}; use tier={choose(cards)[0]!r}")
    return TIERS[name]


def cards_here() -> list[Card]:
    """Return this machine's GPUs, as far as torch sees them."""
    if not torch.cuda.is_available():
        return []
    found = (torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count()))
    return [Card(p.name, p.total_memory, (p.major, p.minor)) for p in found]


def why_not(tier: Tier, cards: Sequence[Card]) -> str:
    """Return why the tier can't run on the first of these GPUs, or an empty string if it can."""
    if not tier.gpus:
        return ""
    if not cards:
        return "needs a GPU and torch sees none"
    if len(cards) < tier.gpus:
        return f"needs {tier.gpus} GPUs, and torch sees {len(cards)}"
    i, least = min(enumerate(cards[: tier.gpus]), key=lambda pair: pair[1].memory_bytes)
    if least.memory_bytes < tier.memory_bytes:
        ranks = " for its ranks together" if tier.world_size > tier.gpus else ""
        return (
            f"needs {tier.memory_bytes / GIB:.1f} GiB on each GPU{ranks}, and GPU {i}, {least.name}, "
            f"has {least.memory_bytes / GIB:.1f}"
        )
    return ""


def choose(cards: Sequence[Card]) -> tuple[str, str]:
    """Return the name of the largest tier that fits on these GPUs, and in words what stays idle, and why."""
    name = next((t.name for t in reversed(TIERS.values()) if t.gpus and not why_not(t, cards)), "cpu")
    idle = len(cards) - TIERS[name].gpus
    if not idle:
        return name, ""
    more = next((t for t in TIERS.values() if TIERS[name].gpus < t.gpus <= len(cards)), None)
    why = f": tier {more.name!r} {why_not(more, cards)}" if more else ""
    return name, f"tier {name!r} leaves {idle} of {len(cards)} GPUs idle{why}"


def precision(cards: Sequence[Card]) -> str:
    """Say which 16-bit dtype is fast on all of these GPUs, and what it needs."""
    old = next((card for card in cards if not card.has_bf16), None)
    if old is None:
        return "bf16"
    return f"fp16, with loss scaling: {old.name} emulates bf16, with the same results and slower"
