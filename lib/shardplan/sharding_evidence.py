"""Evidence that a program shards: what one of its steps holds, moment by moment, and what it sends.

    evidence = probe(model, optimizer, lambda: model(tokens, targets))                          # on each rank
    failures(evidence, Expected("FULL_SHARD", units, world_size)) == {}

A falling loss is no proof of sharding: with a broadcast, an all_reduce and a plain AdamW, a model trains just as well
and holds N times the memory. So `probe` measures the bytes themselves, at five moments of a step (MOMENTS) and at their
peaks in between, and the messages. `shardplan.formulas` computes the expected values, and `compare_formulas` compares.
"""

import gc
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import _resolve_process_group
from torch.optim import Optimizer

from shardlab.backward_hooks import only_watching
from shardlab.launch.flight_recorder import Collective
from shardlab.measure.ledger import CATEGORIES
from shardlab.measure.memory import MemoryTracker
from shardlab.measure.traffic import Traffic, record_traffic, wire_bytes

MOMENTS = ("init", "forward", "backward", "step", "between")  # measured after each; "between" steps: after zero_grad
NOT_THE_STRATEGYS = ("activations", "temporaries", "other")
REDUCING = ("all_reduce", "reduce_scatter", "reduce", "all_to_all")  # gradients may be summed by any of them


@dataclass(frozen=True)
class Sent:
    """One collective or message of a step, as this rank issued it."""

    kind: str
    group_size: int
    elements: int  # that this rank put in
    wire_bytes: float  # that it sends if the collective runs as a ring
    hidden: bool  # issued before backward had computed its last gradient


@dataclass(frozen=True)
class Evidence:
    """Measurements of one settled step on one rank: bytes by category (see ledger.CATEGORIES), and messages."""

    rank: int
    held: dict[str, dict[str, int]]  # at each of MOMENTS
    peak: dict[str, int]  # peak of each category, each at its own moment, and of sums of them: see _peaks
    sent: tuple[Sent, ...]
    sent_in_no_sync: tuple[Sent, ...]  # by the micro-batch that ran under `no_sync`

    @property
    def wire_bytes(self) -> float:
        return sum(s.wire_bytes for s in self.sent)

    @property
    def hidden_share(self) -> float:
        """Share of the gradients' elements whose collective was issued before the last gradient was computed."""
        gradients = reducing(self.sent)
        return sum(s.elements for s in gradients if s.hidden) / max(1, sum(s.elements for s in gradients))


def reducing(sent: tuple[Sent, ...]) -> list[Sent]:
    """List the collectives that can carry gradients to be summed."""
    return [s for s in sent if s.kind in REDUCING]


def probe(
    module: nn.Module,
    optimizer: Optimizer,
    forward: Callable[[], Tensor],
    *,
    backward: Callable[[Tensor], object] = Tensor.backward,
    step: Callable[[], object] | None = None,
    zero_grad: Callable[[], object] | None = None,
    no_sync: Callable[[], AbstractContextManager] | None = None,
    warmup: int = 2,
) -> Evidence:
    """Train `warmup` steps and then one under observation; every rank calls this together.

    `forward()` returns the loss. `step` and `zero_grad` default to the optimizer's. With `no_sync`, one more step
    of two micro-batches follows, the first of them under `no_sync()`.

    All other floating-point tensors of this process count as "other": delete them first.
    """
    parts = _Step(forward, backward, step or optimizer.step, zero_grad or optimizer.zero_grad)
    at_rest = _held_at_rest(module, optimizer)
    for _ in range(warmup):
        parts.run()
    tracker, traffic, last_gradient_s = _observe(module, optimizer, parts)
    timeline, marks = tracker.timeline(), _marks(tracker)
    return Evidence(
        rank=dist.get_rank(),
        held={"init": at_rest} | {moment: _at(timeline, marks[moment]) for moment in MOMENTS[1:]},
        peak=_peaks([now for _, now in timeline]),
        sent=tuple(_sent(c, last_gradient_s) for c in traffic.collectives),
        sent_in_no_sync=_accumulate(parts, no_sync) if no_sync else (),
    )


class _Step(NamedTuple):
    forward: Callable[[], Tensor]
    backward: Callable[[Tensor], object]
    step: Callable[[], object]
    zero_grad: Callable[[], object]

    def run(self, after: Callable[[str], object] = lambda moment: None) -> None:
        loss = self.forward()
        after("forward")
        self.backward(loss)
        after("backward")
        del loss
        self.step()
        after("step")
        self.zero_grad()


def _observe(module: nn.Module, optimizer: Optimizer, parts: _Step) -> tuple[MemoryTracker, Traffic, float]:
    """Memory and traffic of one step, and the time of its last gradient, in seconds since the epoch."""
    gradient_times: list[float] = []
    with MemoryTracker(module, optimizer) as tracker, record_traffic() as traffic:
        tracker.mark("start")
        epoch_s = time.time() - tracker.marks[0][0]
        with _watch_gradients(module, tracker, gradient_times):
            parts.run(after=tracker.mark)
        _label_everything(tracker)
        tracker.mark("between")
    gathered_s = _last_unsharded(tracker.timeline(), _marks(tracker)["forward"], _marks(tracker)["backward"])
    return tracker, traffic, max([*gradient_times, epoch_s + gathered_s])


def _marks(tracker: MemoryTracker) -> dict[str, float]:
    return {name: seconds for seconds, name in tracker.marks}


def _held_at_rest(module: nn.Module, optimizer: Optimizer) -> dict[str, int]:
    gc.collect()
    with MemoryTracker(module, optimizer) as tracker:
        _label_everything(tracker)
    return tracker.resident


def _label_everything(tracker: MemoryTracker) -> None:
    """Label all tensors that Python knows: a copy of the weights that the step never touches is memory, too."""
    with torch._C.DisableTorchFunctionSubclass():  # some raise when they are used: our FSDP's freed parameters
        found = [t for t in gc.get_objects() if issubclass(type(t), Tensor)]
        tracker.label("other", *(t for t in found if t.is_floating_point()))


@contextmanager
def _watch_gradients(module: nn.Module, tracker: MemoryTracker, times: list[float]) -> Iterator[None]:
    """Label the gradients of the module's own parameters as soon as they are computed, and note the times."""

    @only_watching
    def made(gradient: Tensor) -> None:
        tracker.label("gradients", gradient)
        times.append(time.time())

    handles = [p.register_hook(made) for p in module.parameters() if p.requires_grad]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _peaks(moments: list[dict[str, int]]) -> dict[str, int]:
    """Peak bytes by category, of "states" (all but NOT_THE_STRATEGYS: the strategy's responsibility), and "total"."""
    peaks = {name: max(now[name] for now in moments) for name in CATEGORIES}
    states = max(sum(now[name] for name in CATEGORIES if name not in NOT_THE_STRATEGYS) for now in moments)
    return peaks | {"states": states, "total": max(sum(now.values()) for now in moments)}


def _last_unsharded(timeline, start_s: float, end_s: float) -> float:
    """Last time between these moments at which unsharded memory grew (parameters or gradients), or 0.0."""
    neighbours = zip(timeline, timeline[1:], strict=False)
    appeared = [s for (_, before), (s, now) in neighbours if now["unsharded"] > before["unsharded"]]
    return max((s for s in appeared if start_s < s <= end_s), default=0.0)


def _at(timeline, seconds: float) -> dict[str, int]:
    return timeline[bisect_right(timeline, seconds, key=lambda moment: moment[0]) - 1][1]


def _accumulate(parts: _Step, no_sync: Callable[[], AbstractContextManager]) -> tuple[Sent, ...]:
    """Run a step of two micro-batches, the first under `no_sync`; return what that first one sends."""
    with record_traffic() as traffic, no_sync():
        parts.backward(parts.forward())
    parts.run()
    return tuple(_sent(c, 0.0) for c in traffic.collectives)


def _sent(c: Collective, last_gradient_s: float) -> Sent:
    group_size = _resolve_process_group(c.group).size()
    elements = sum(torch.Size(shape).numel() for shape in c.shape)
    return Sent(c.kind, group_size, elements, wire_bytes(c, group_size), c.issued_s < last_gradient_s)
