"""`timed_step`: a training step on a slow simulated network with slept computation, and the same step by arithmetic.

Computation is slept and the network is slow: a block's gather takes about as long as its forward. PyTorch's FSDP, its
streams and the order in which it issues messages are real. See [Note: the host is the compute stream] in
`shardsim.cpu_streams`.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import nn

from shardcourse.experiments.measured_step import my_batch
from shardlab.model import Transformer, preset
from shardsim import simulated
from shardsim.cpu_streams import run_ahead
from shardsim.slept_computation import sleep_in
from shardsim.step_schedules import Unit, fsdp_step
from shardtrace.record_timeline import record_timeline
from shardtrace.timeline import Timeline

BLOCKS, FORWARD_S, BACKWARD_S = 5, 0.025, 0.050
LATENCY_S, BYTES_PER_S = 1e-3, 25e6
NETWORK = simulated("25 MB/s, 1 ms")
CONFIG = preset("1M", n_layers=BLOCKS)
ROOT_BYTES = 4 * (2 * CONFIG.vocab_size * CONFIG.dim + CONFIG.dim)
BLOCK_BYTES = (4 * CONFIG.n_params - ROOT_BYTES) // BLOCKS


def message_s(n_bytes: int, ranks: int = 4) -> float:
    """Seconds of an all_gather or a reduce_scatter of `n_bytes` as a ring."""
    return (ranks - 1) * (LATENCY_S + n_bytes / ranks / BYTES_PER_S)


def predicted_step(*, host_runs_ahead: bool = True, **options) -> Timeline:
    """Return the step by arithmetic. `options` are those of `shardsim.step_schedules.fsdp_step`."""
    root, block = message_s(ROOT_BYTES), message_s(BLOCK_BYTES)
    units = [Unit(f"blocks.{i}", FORWARD_S, BACKWARD_S, block, block) for i in range(BLOCKS)]
    return fsdp_step(Unit("root", 0, 0, root, root), units, host_runs_ahead=host_runs_ahead, **options)


def timed_step(shard: Callable[[nn.Module], nn.Module], *, host_runs_ahead: bool = True, rounds: int = 2) -> Timeline:
    """Return the fastest of a few steps on this rank. `shard` makes the model an FSDP model."""
    torch.manual_seed(0)
    model = Transformer(CONFIG)
    for i, block in enumerate(model.blocks):
        sleep_in(block, FORWARD_S, BACKWARD_S, name=f"blocks.{i}")
    model = shard(model)
    return min((_step(model, host_runs_ahead) for _ in range(rounds)), key=lambda step: step.duration_s)


def _step(model: nn.Module, host_runs_ahead: bool) -> Timeline:
    model.zero_grad()
    inputs = my_batch(seq_len=8)
    dist.barrier()
    with run_ahead() if host_runs_ahead else nullcontext(), record_timeline(model) as recording:
        model(*inputs).backward()
        torch.cpu.synchronize()
    step = recording.timeline
    return replace(step, spans=tuple(replace(span, issued_s=None) for span in step.spans))  # only what ran
