"""Measure one step of lesson 8: bytes of activations, peak bytes, FLOPs, gradients, with blocks recomputed or not.

step_cost(with_blocks(model, partial(checkpoint, use_reentrant=False)), tokens, targets).activation_bytes
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from shardlab.measure.memory import MemoryTracker
from shardlab.model import Transformer


@dataclass(frozen=True)
class StepCost:
    """Cost of one forward and backward on a rank."""

    activation_bytes: int  # the most at once
    peak_bytes: int  # of everything
    flops: int

    def percent_more_flops(self, base: "StepCost") -> float:
        return 100 * (self.flops / base.flops - 1)


def with_blocks(model: Transformer, call: Callable, every: int = 1) -> Transformer:
    """Run the forward of each `every`-th block as `call(forward, ...)` from now on, and return the model."""
    for i, block in enumerate(model.blocks, start=1):
        if i % every == 0:
            block.forward = partial(call, block.forward)
    return model


def track_step(model: nn.Module, *batch: Tensor) -> MemoryTracker:
    """Run forward and backward of `model(*batch)`, and return the tracker that watched them."""
    with MemoryTracker(model) as tracker:
        model(*batch).sum().backward()
    return tracker


def most_activations(tracker: MemoryTracker) -> int:
    """Return the most bytes of activations at once."""
    return max(now["activations"] for _, now in tracker.timeline())


def step_cost(model: nn.Module, *batch: Tensor) -> StepCost:
    """Run two steps, one to count FLOPs and one to track memory: the counter itself keeps tensors."""
    with FlopCounterMode(display=False) as counter:
        model(*batch).sum().backward()
    model.zero_grad()
    tracker = track_step(model, *batch)
    return StepCost(most_activations(tracker), tracker.peak.peak_bytes, counter.get_total_flops())


def gradients(model: nn.Module, *batch: Tensor) -> list[Tensor]:
    """Return all gradients of `model(*batch)`, to compare them bit by bit."""
    model.zero_grad()
    model(*batch).sum().backward()
    return [p.grad.clone() for p in model.parameters()]


def kept_bytes(module: nn.Module, *args: Tensor) -> int:
    """Return the bytes that autograd keeps of `module(*args)`, the module's own parameters not counted."""
    kept = {}

    def pack(t: Tensor) -> Tensor:
        kept[t.untyped_storage().data_ptr()] = t
        return t

    with saved_tensors_hooks(pack, lambda t: t):
        module(*args)
    for p in module.parameters():
        kept.pop(p.untyped_storage().data_ptr(), None)
    return sum(t.untyped_storage().nbytes() for t in kept.values())
