"""Timeline of a step whose blocks sleep instead of compute: what overlaps, whatever this machine's speed is."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from shardcourse.experiments.measured_training import fresh_model
from shardlab import launch
from shardsim import simulated
from shardsim.slept_computation import sleep_in
from shardtrace.record_timeline import record_timeline
from shardtrace.timeline import Timeline


def slept_step(
    wrap: Callable[[nn.Module], nn.Module], n: int, network: str, *, forward_ms: float, backward_ms: float
) -> Timeline:
    """Return rank 0's timeline of a step on `n` ranks and a simulated network; `wrap` shards the model.

    Each block sleeps for `forward_ms` and `backward_ms`.
    """
    record = partial(_record, wrap, forward_ms / 1e3, backward_ms / 1e3)
    return launch(record, n, network=simulated(network), device="cpu", stream=False)[0]


def _record(wrap: Callable[[nn.Module], nn.Module], forward_s: float, backward_s: float) -> Timeline:
    model = fresh_model()
    for block in model.blocks:
        sleep_in(block, forward_s, backward_s)
    model = wrap(model)
    tokens = torch.zeros(1, 8, dtype=torch.long)
    for _ in range(2):  # the first step warms up
        model.zero_grad()
        dist.barrier()
        with record_timeline(model) as recording:
            model(tokens, tokens).backward()
    return _without_buckets(recording.timeline)


def _without_buckets(timeline: Timeline) -> Timeline:
    """Drop the numbers that `record_timeline` gives to messages without a label, as if they were DDP's buckets."""
    unnamed = [replace(s, unit="") if s.unit.startswith("bucket") else s for s in timeline.spans]
    return replace(timeline, spans=tuple(unnamed))
