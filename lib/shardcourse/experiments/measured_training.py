"""Train a few steps on a rank, and measure the last one: what is held, the peak, and what is sent."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from shardlab import LaunchError, launch, local_device
from shardlab.measure.ledger import Memory
from shardlab.measure.memory import MemoryTracker
from shardlab.measure.traffic import record_traffic
from shardlab.model import ModelConfig, Transformer, preset
from shardlab.text_batches import batch

Prepare = Callable[[nn.Module], tuple[Callable, object]]  # model -> what to call forward on, and the optimizer


@dataclass(frozen=True)
class Measured:
    """One rank's record of a few steps. All but the losses are of the last step."""

    losses: list[float]
    held: Mapping[str, int]  # bytes by category, when backward has ended and the optimizer has not run yet
    peak: Memory
    timeline: list[tuple[float, dict[str, int]]]  # bytes by category over time
    phases: list[tuple[float, str]]
    sent: float  # bytes, every collective as a ring
    kinds: Mapping[str, int]  # number of collectives by kind


def samples(step: int, *, seed: int = 0, micro_batch: int = 2, seq_len: int = 64):
    """Return this rank's tokens and targets of a step: real text, different on each rank."""
    n = dist.get_world_size()
    sizes = {"global_batch": micro_batch * n, "seq_len": seq_len, "device": local_device()}
    return batch(seed, step, dist.get_rank(), n, **sizes)


def fresh_model(config: ModelConfig | None = None, *, seed: int = 0) -> Transformer:
    """Return an untrained model on this rank's device, "1M" if left out. The seed decides its weights."""
    torch.manual_seed(seed)
    return Transformer(config or preset("1M")).to(local_device())


def train(
    prepare: Prepare,
    *,
    steps: int = 4,
    micro_batch: int = 2,
    seq_len: int = 64,
    config: ModelConfig | None = None,
    seed: int = 0,
) -> Measured:
    """Train a Transformer for `steps` steps on this rank. Every rank starts from the same weights.

    The optimizer needs `step()` and `zero_grad()`. If it wraps a torch optimizer, that is its attribute `optim`.
    """
    model, losses = fresh_model(config, seed=seed), []
    module, optimizer = prepare(model)
    for step in range(steps):
        tokens, targets = samples(step, seed=seed, micro_batch=micro_batch, seq_len=seq_len)
        inner = getattr(optimizer, "optim", optimizer)
        with MemoryTracker(model, inner) as tracker, record_traffic() as traffic:
            loss = module(tokens, targets)
            loss.backward()
            held = tracker.resident
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
        del loss
    over_time = tracker.peak, tracker.timeline(), tracker.phases()
    return Measured(losses, held, *over_time, traffic.wire_bytes(dist.get_world_size()), dict(traffic.kinds()))


def outcome(fn: Callable, n: int, *args, **options) -> str:
    """Return what rank 0 of a launch returns, as text, or the first line of the launch's error."""
    try:
        return str(launch(fn, n, *args, **options)[0])
    except LaunchError as error:
        return str(error).splitlines()[0]
