"""Duration of a step of DDP or FSDP by arithmetic: queues that each do one thing at a time, in order of issue.

    compute       forward and backward of each unit
    shard         all_gathers and reduce_scatters, which use one communicator; in DDP its all_reduces
    replicate     HSDP's all_reduces, between the nodes

An operation starts when its queue is free and its inputs are there. So everything follows from the order of issue, and
the options change that order. FSDP's root is a unit as well. It is gathered first; it computes (the output layer) after
its blocks; and its gradients come last, because the embedding's are among them.

[Note: host and device] On a GPU the host issues a whole forward ahead of the device. So all_gathers are prefetched
without being told, and something has to hold them back: an all_gather waits for the copy-out of the unit before the
last (`limit_all_gathers`), at which that unit began to compute. On a CPU the host is the device: an all_gather is
issued when the previous unit has computed, unless that unit was told to prefetch it. In backward there is little
difference between the two. Without prefetching, a unit's all_gather is issued after the previous unit's reduce_scatter
and queues behind it. With prefetching, it is issued before that reduce_scatter.

Source: torch.distributed.fsdp._fully_shard._fsdp_param_group and _fsdp_state; Zhao et al. 2023, sections 3.3 and 3.4;
for DDP, Li et al. 2020, section 3.2.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from shardtrace.timeline import Span, Timeline


@dataclass(frozen=True)
class Unit:
    """Cost of one unit, each operation alone on an idle machine, in seconds."""

    name: str
    forward_s: float
    backward_s: float
    all_gather_s: float
    reduce_scatter_s: float
    all_reduce_s: float = 0.0  # HSDP's, of the gradients' shards after the reduce_scatter


def ddp_step(
    forward_s: float,
    backward_s: float,
    ready_s: Sequence[float],
    all_reduce_s: Sequence[float],
    *,
    overlap: bool = True,
) -> Timeline:
    """Return a DDP step's timeline; `ready_s` are since backward began. Without overlap, backward waits for buckets."""
    spans = [Span("compute", "forward", 0.0, forward_s)]
    computed_s, sent_s, link_s = 0.0, forward_s, 0.0
    for i, (ready, cost) in enumerate(zip(ready_s, all_reduce_s, strict=True)):
        waited_s = 0.0 if overlap else link_s
        spans.append(Span("compute", "backward", *(forward_s + waited_s + s for s in (computed_s, ready))))
        start_s = max(sent_s, spans[-1].end_s)
        spans.append(Span("link", "all_reduce", start_s, start_s + cost, f"bucket {i}"))
        computed_s, sent_s, link_s = ready, start_s + cost, link_s + cost
    waited_s = 0.0 if overlap else link_s
    spans.append(Span("compute", "backward", *(forward_s + waited_s + s for s in (computed_s, backward_s))))
    return Timeline(0, tuple(spans))


def fsdp_step(
    root: Unit,
    blocks: Sequence[Unit],
    *,
    forward_prefetch: int = 0,
    backward_prefetch: int = 1,
    reshard_after_forward: bool = True,
    root_reshards: bool = False,
    host_runs_ahead: bool = False,
    limit_all_gathers: bool = True,
) -> Timeline:
    """Return the timeline from the start of forward to the last gradient.

    `forward_prefetch` and `backward_prefetch` are how many units each unit prefetches; the defaults are torch's. torch
    never frees the root after forward unless told to.
    """
    step = _Step(host_runs_ahead, limit_all_gathers)
    units = [root, *blocks]
    for i, unit in enumerate(units):
        step.unshard(unit)
        step.wait_for_unshard(unit, in_forward=True)
        for other in units[i + 1 : i + 1 + forward_prefetch]:
            step.unshard(other)
        if unit is not root:
            step.compute("forward", unit, unit.forward_s)
            step.reshard(unit) if reshard_after_forward else None
    step.compute("forward", root, root.forward_s)
    step.reshard(root) if root_reshards else None
    step.end_forward()

    units = [root, *reversed(blocks)]  # backward enters the root's output layer first
    for i, unit in enumerate(units):
        step.unshard(unit)
        step.wait_for_unshard(unit)
        for other in units[i + 1 : i + 1 + backward_prefetch]:
            step.unshard(other)
        step.compute("backward", unit, unit.backward_s)
        step.reduce(unit) if unit is not root else None
    step.reduce(root)
    return Timeline(0, tuple(step.spans))


class _Step:
    """State of a step. The methods have the names of torch's FSDPParamGroup."""

    def __init__(self, host_runs_ahead: bool, limit_all_gathers: bool) -> None:
        self.host_runs_ahead, self.limit_all_gathers = host_runs_ahead, limit_all_gathers
        self.spans: list[Span] = []
        self.computed_s = 0.0  # when each queue finishes the work that it has so far
        self.sent_s = {"shard": 0.0, "replicate": 0.0}
        self.unsharded: set[str] = set()
        self.arrives_s: dict[str, float] = {}  # units that are being gathered
        self.copied_out_s = 0.0  # when the unit gathered last had arrived and could compute
        self.gather_after_s = 0.0  # the copy-out for which the next all_gather waits on the device
        self.reduced_s = 0.0  # when the last reduce_scatter ended

    def compute(self, name: str, unit: Unit, seconds: float) -> None:
        start_s, self.computed_s = self.computed_s, self.computed_s + seconds
        self.spans.append(Span("compute", name, start_s, self.computed_s, unit.name))

    def unshard(self, unit: Unit) -> None:
        if unit.name in self.unsharded or unit.name in self.arrives_s:
            return
        ready_s = self.gather_after_s if self.host_runs_ahead else self.computed_s
        self.arrives_s[unit.name] = self._send("shard", "all_gather", unit, unit.all_gather_s, ready_s)

    def wait_for_unshard(self, unit: Unit, in_forward: bool = False) -> None:
        if unit.name in self.unsharded:
            return
        self._compute_waits(self.arrives_s.pop(unit.name))
        before_s, self.copied_out_s = self.copied_out_s, self.computed_s
        self.unsharded.add(unit.name)
        if self.limit_all_gathers:
            self.gather_after_s = before_s if in_forward else self.copied_out_s

    def reshard(self, unit: Unit) -> None:
        self.unsharded.remove(unit.name)

    def end_forward(self) -> None:
        if self.limit_all_gathers:
            self.gather_after_s = self.copied_out_s

    def reduce(self, unit: Unit) -> None:
        """Reduce the unit's gradients. There is memory for one unit's on their way: the last must have arrived."""
        self.reshard(unit)
        self._compute_waits(self.reduced_s)
        self.reduced_s = self._send("shard", "reduce_scatter", unit, unit.reduce_scatter_s, self.computed_s)
        if unit.all_reduce_s:
            self._send("replicate", "all_reduce", unit, unit.all_reduce_s, self.reduced_s)

    def _compute_waits(self, until_s: float) -> None:
        self.computed_s = max(self.computed_s, until_s)

    def _send(self, queue: str, kind: str, unit: Unit, seconds: float, ready_s: float) -> float:
        start_s = max(self.sent_s[queue], ready_s)
        end_s = self.sent_s[queue] = start_s + seconds
        self.spans.append(Span("link", kind, start_s, end_s, unit.name, issued_s=ready_s))
        return end_s
