"""A second way to compute memory: run the setup's own program with PyTorch's own engines, without hardware.

Tensors are fake: they have a shape and a dtype, but no bytes. The process group is fake: collectives return at once.
Everything else is real: the model, FSDP2's or DDP's code, autograd, recomputation, the optimizer, and the MemoryTracker
that counts the bytes which real tensors would have. So one process on a laptop can be rank 0 of any number of ranks,
with any model. The trace uses none of the plan's formulas, so the two can check each other.

[Note: what differs from a run] Rank 0 is the fullest, because of how shards are cut. On ranks with a CPU the trace
equals what a MemoryTracker measures, to the byte (tests/plan/test_plan_trace.py). A GPU differs in three ways: the
kernel that attention picks, and so what attention saves (a CPU's flash kernel makes about what a GPU's does); what
kernels and NCCL allocate inside one operation; and, in all of these, the caching allocator's rounding. If torch finds a
GPU, the fake tensors are CUDA tensors.

[Note: few blocks] The blocks of a decoder are equal, so each part's fullest moment is linear in their number: see
`layers`. A deep model is traced at two small depths, which takes seconds. Of many micro-batches, three are run: the
first, the last, and one that stands for all between them.

Source: torch._subclasses.fake_tensor; torch.testing._internal.distributed.fake_pg.
"""

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch

from shardlab.launch import launch
from shardplan.planned_job import Setup
from shardplan.records import Moment, Term
from shardplan.trace.layers import deeper, depths
from shardplan.trace.no_hardware import no_hardware
from shardplan.trace.program import batch, build
from shardplan.trace.traceable import check_traceable
from shardplan.trace.tracker import OriginTracker, Part

WARM_UP = 1  # steps before the trace, in which optimizers make their states


@dataclass(frozen=True)
class Trace:
    """Traced memory of the fullest rank: what is live at the fullest moment of each part of a step."""

    setup: Setup
    moments: tuple[Moment, ...]  # in the order of a step; each part's fullest one of all micro-batches
    depths: tuple[int, ...]  # traced numbers of blocks; if two, the rest is extrapolated from them
    seconds: float  # time of the trace itself

    @property
    def peak(self) -> Moment:
        return max(self.moments, key=lambda m: m.n_bytes)

    @property
    def allocated_bytes(self) -> float:
        return self.peak.n_bytes

    def largest(self, n: int = 10) -> tuple[Term, ...]:
        """Return the `n` largest terms at the peak. Equal tensors of equal origin are one term."""
        return tuple(sorted(self.peak.terms, key=lambda t: -t.n_bytes)[:n])


def trace_memory(setup: Setup, *, every_block: bool = False, timeout_s: float = 600.0) -> Trace:
    """Run a few steps of `setup` with fake tensors on one fake rank, in a separate process, and trace the last step.

    `every_block` traces a deep model whole instead of at two small depths.

    Raises ValueError for what can't be traced; LaunchError if the program fails, or takes longer than `timeout_s`;
    RuntimeError inside launch or torchrun, where no process can be started.
    """
    check_traceable(setup)
    if "TORCHELASTIC_RUN_ID" in os.environ:
        raise RuntimeError("trace_memory starts a process of its own: call it outside of launch and torchrun")
    began = time.perf_counter()
    chosen = (setup.shape.n_layers,) if every_block else depths(setup)
    few = replace(setup, strategy=replace(setup.strategy, accumulation=min(setup.strategy.accumulation, 3)))
    traced = launch(_trace, 1, few, chosen, timeout_s=timeout_s, device="cpu", backend="gloo", stream=False)[0]
    parts = traced[0] if len(chosen) == 1 else deeper(traced[0], traced[1], setup.shape.n_layers)
    if parts is None:
        return trace_memory(setup, every_block=True, timeout_s=timeout_s)
    return Trace(setup, moments_of(parts), chosen, time.perf_counter() - began)


# In the separate process


def _trace(setup: Setup, chosen: Iterable[int]) -> list[list[Part]]:
    """Return the parts of a step, for each number of blocks."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with no_hardware(setup.world_size):
        return [step_parts(setup, device, n_layers, "meta") for n_layers in chosen]


def step_parts(setup: Setup, device: str, n_layers: int | None = None, storages: str | None = None) -> list[Part]:
    """Trace a step of the setup's program on this rank, fake or real. `storages`: the device that storages are on."""
    program, micro_batch = build(setup, device, n_layers), batch(setup, device)
    for _ in range(WARM_UP):
        program.train_step(*micro_batch)
    with OriginTracker(program.module, program.model, program.optimizer, device=storages or device) as tracker:
        program.train_step(*micro_batch)
    return tracker.parts()


# In words


def moments_of(parts: list[Part]) -> tuple[Moment, ...]:
    """Return a moment for each part: the fullest over all micro-batches, in the place of the part's last occurrence."""
    fullest: dict[str, Moment] = {}
    for name, live in parts:
        name = name.split(": ")[-1]
        terms = tuple(Term(kind.category, kind.words(n), n * kind.n_bytes) for kind, n in live.items())
        candidates = [m for m in (fullest.pop(name, None), Moment(name, name.split()[0], terms)) if m]
        fullest[name] = max(candidates, key=lambda m: m.n_bytes)
    return tuple(fullest.values())
