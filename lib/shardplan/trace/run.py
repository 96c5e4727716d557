"""Memory by another route: the setup's own program is run by PyTorch's own engines, with no hardware under it.

Its tensors are fake: they have a shape and a dtype, and no bytes. Its process group is fake: collectives return at
once. Everything else is real: the model, FSDP2's or DDP's code, autograd, recomputation, the optimizer, and the
MemoryTracker that counts what would be there. So one process is rank 0 of as many ranks as one likes, of any model, on
a laptop; and since it knows none of the plan's formulas, the two can be held against each other.

[Note: what differs from a run] Rank 0 is the fullest, as shards are cut. On ranks with a CPU the trace is equal to what
a MemoryTracker measures, to the byte (tests/test_plan_trace.py). From a GPU differ: which kernel attention picks, and
with it what it saves (a CPU's flash kernel makes about what a GPU's does); what kernels and NCCL allocate inside one
operation; and, in all of these, the caching allocator's rounding. Where torch finds a GPU, the fake tensors are CUDA's.

[Note: few blocks] The blocks of a decoder are equal, and so each part's fullest moment is linear in their number: see
`layers`. A deep model is traced at two small depths, which takes seconds. Of many micro-batches, three are run: the
first, the last, and one for all between them.

Source: torch._subclasses.fake_tensor; torch.testing._internal.distributed.fake_pg.
"""

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch

from shardlab.launch import launch
from shardlab.measure.ledger import Memory
from shardplan.records import Moment, Term
from shardplan.setup import Setup
from shardplan.trace.layers import deeper, depths
from shardplan.trace.no_hardware import no_hardware
from shardplan.trace.program import batch, build
from shardplan.trace.traceable import check_traceable
from shardplan.trace.tracker import OriginTracker, Part

WARM_UP = 1  # step, in which optimizers make their states


@dataclass(frozen=True)
class Trace:
    """Of one rank, the fullest one: what is live at the fullest moment of each part of a step."""

    setup: Setup
    moments: tuple[Moment, ...]  # in the order of a step; of a step's micro-batches, each part's fullest one
    depths: tuple[int, ...]  # in blocks, that were traced; if two, the rest is linear in them
    seconds: float  # that it took

    @property
    def peak(self) -> Moment:
        return max(self.moments, key=lambda m: m.n_bytes)

    @property
    def allocated_bytes(self) -> float:
        return self.peak.n_bytes

    @property
    def memory(self) -> Memory:
        """The peak, as a MemoryTracker gives it."""
        return Memory(**{c: int(n) for c, n in self.peak.by_category().items()}, where=self.peak.phase)

    def largest(self, n: int = 10) -> tuple[Term, ...]:
        """What takes most at the peak: equal tensors of equal origin are one term."""
        return tuple(sorted(self.peak.terms, key=lambda t: -t.n_bytes)[:n])


def trace_memory(setup: Setup, *, every_block: bool = False, timeout_s: float = 600.0) -> Trace:
    """Run a few steps of `setup` with fake tensors on one fake rank, in a process of its own; account for the last.

    `every_block` traces a deep model whole instead of at two small depths.

    Raises ValueError for what can't be traced; LaunchError if the program fails, or takes longer than `timeout_s`;
    RuntimeError on a rank of launch's or torchrun's, from where no process can be started.
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


# In the process of its own


def _trace(setup: Setup, chosen: Iterable[int]) -> list[list[Part]]:
    """The parts of a step, for each number of blocks."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with no_hardware(setup.world_size):
        return [step_parts(setup, device, n_layers, "meta") for n_layers in chosen]


def step_parts(setup: Setup, device: str, n_layers: int | None = None, storages: str | None = None) -> list[Part]:
    """On a rank, fake or real: a step of the setup's program. `storages` is the device they are on."""
    program, micro_batch = build(setup, device, n_layers), batch(setup, device)
    for _ in range(WARM_UP):
        program.train_step(*micro_batch)
    with OriginTracker(program.module, program.model, program.optimizer, device=storages or device) as tracker:
        program.train_step(*micro_batch)
    return tracker.parts()


# In words


def moments_of(parts: list[Part]) -> tuple[Moment, ...]:
    """Of a part that comes with every micro-batch, the fullest one, where it comes last."""
    fullest: dict[str, Moment] = {}
    for name, live in parts:
        name = name.split(": ")[-1]
        terms = tuple(Term(kind.category, kind.words(n), n * kind.n_bytes) for kind, n in live.items())
        candidates = [m for m in (fullest.pop(name, None), Moment(name, name.split()[0], terms)) if m]
        fullest[name] = max(candidates, key=lambda m: m.n_bytes)
    return tuple(fullest.values())
