"""Checks of what activation checkpointing costs and saves: torch's own wrapper on the course's model, counted."""

from functools import cache

import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.utils.checkpoint import set_checkpoint_early_stop
from torch.utils.flop_counter import FlopCounterMode

from shardcourse.claims.claim import Findings
from shardlab import launch
from shardlab.measure.memory import MemoryTracker
from shardlab.model import Block, ModelConfig, Transformer

SEQ_LEN = 64


def extra_flops(layers: int) -> Findings:
    """Return the extra FLOPs of recomputing every block, as a share: as torch does it, and with the whole forward."""
    ways = {"torch stops early": True, "the whole forward": False}
    return {words: _counted(layers, True, stop)[0] / _counted(layers, False)[0] - 1 for words, stop in ways.items()}


def activations_saved(layers: list[int]) -> Findings:
    """Return peak activation bytes without recomputation over those with it, the output layer's included."""
    return {f"{n} layers": _counted(n, False)[1] / _counted(n, True)[1] for n in layers}


def wrapper_works() -> Findings:
    """Check whether torch's apply_activation_checkpointing lowers the peak of activations."""
    return {"4 layers": _counted(4, True)[1] < _counted(4, False)[1]}


@cache
def _counted(n_layers: int, recompute: bool, early_stop: bool = True) -> tuple[int, int]:
    """Return (FLOPs of forward and backward, peak bytes of activations). It runs on a rank, which has one thread."""
    return launch(_count, 1, n_layers, recompute, early_stop, device="cpu", stream=False)[0]


def _count(n_layers: int, recompute: bool, early_stop: bool) -> tuple[int, int]:
    torch.manual_seed(0)
    model = Transformer(ModelConfig(256, 64, n_layers, 4, 2, 224, SEQ_LEN))
    if recompute:
        apply_activation_checkpointing(
            model,
            checkpoint_wrapper_fn=lambda m: checkpoint_wrapper(m, checkpoint_impl=CheckpointImpl.NO_REENTRANT),
            check_fn=lambda m: isinstance(m, Block),
        )
    tokens = torch.randint(256, (2, SEQ_LEN))
    with FlopCounterMode(display=False) as counter, set_checkpoint_early_stop(early_stop):
        model(tokens, tokens).backward()
    with MemoryTracker(model) as tracker:
        model(tokens, tokens).backward()
    return counter.get_total_flops(), max(now["activations"] for _, now in tracker.timeline())
