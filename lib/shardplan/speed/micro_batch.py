"""The timeline of one micro-batch on one stage: units with their costs, ordered by `shardsim.step_schedules`.

[Note: contention] Collectives run on the GPU too. During one, computation has fewer processors and less of the memory's
bandwidth, and is slower by `closed_forms.CONTENTION`. The units are slowed by the share of their time that is
overlapped, and then ordered again.

[Note: model parallel] Tensor parallelism's collectives lie between two products that need each other, so nothing
overlaps them, unless `async_tensor` cuts both; nor the all_to_alls between tokens and their experts. Context
parallelism's ring overlaps with attention, as long as attention takes. In the timeline, what is not overlapped is part
of a unit's time; it counts as exposed.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from shardplan.planned_job import Setup
from shardplan.speed.async_tensor import hidden_s
from shardplan.speed.collectives import all_s, seconds
from shardplan.speed.data_parallel import bucket_timeline
from shardplan.speed.kernels import Both, block_work, moved_s, root_work
from shardplan.speed.offloading import activations_s, stream_s
from shardplan.stage_parameters import Stage, Weight
from shardplan.traffic.data_parallel import unit_sends
from shardplan.traffic.eight_bits import before_gathers, n_scales
from shardplan.traffic.model_parallel import context_sends, expert_sends, root_tensor_sends, tensor_sends
from shardplan.traffic.units import BLOCK, DENSE, ROOT, gathered_bytes, gradient_bytes
from shardsim.closed_forms import CONTENTION
from shardsim.step_schedules import Unit, fsdp_step
from shardtrace.timeline import Timeline


@dataclass(frozen=True)
class Costs:
    """Costs of one micro-batch in a block, or in a stage's part of the root."""

    work: Both
    waited_s: tuple[float, float]  # forward, backward: see [Note: model parallel]
    unit: str = ROOT  # a name of `traffic.units`
    away_s: float = 0.0  # in which what the block keeps goes to the host, or comes back


@dataclass(frozen=True)
class MicroBatch:
    timeline: Timeline
    on_device: Timeline  # the same without offloading
    waited_s: float  # part of the timeline's computation that is really waiting: see [Note: model parallel]
    launches: float
    attention_s: float

    @property
    def computed_s(self) -> float:
        return self.on_device.compute_s - self.waited_s

    @property
    def exposed_s(self) -> float:
        return self.on_device.duration_s - self.computed_s

    @property
    def offload_s(self) -> float:
        """Seconds that streaming from the host adds."""
        return self.timeline.duration_s - self.on_device.duration_s


def micro_batches(setup: Setup, stage: Stage) -> list[tuple[int, MicroBatch]]:
    """Return (number of equal micro-batches, one of them), in the order of a step.

    The first gathers parameters that the others may keep; the last may be the only one that reduces gradients.
    """
    s = setup.strategy
    keeps, delays = s.pipeline > 1 and s.sharding == "SHARD_GRAD_OP", s.accumulate_unsharded
    kinds = Counter((not keeps or i == 0, not delays or i == s.accumulation - 1) for i in range(s.accumulation))
    recomputed = [s.recomputes(block) for block in range(1, stage.n_blocks + 1)]
    blocks = {
        (r, dense): Costs(block_work(on, r), messages_s(on, r), BLOCK if not dense else DENSE, activations_s(on, r))
        for dense, on in ((False, setup), *([(True, setup.dense)] if stage.n_dense else []))
        for r in sorted(set(recomputed))
    }
    root = Costs(root_work(setup, stage.first, stage.last), root_messages_s(setup, stage), ROOT)
    costs = [root, *(blocks[r, number <= stage.n_dense] for number, r in enumerate(recomputed, 1))]
    return [(n, _micro_batch(setup, stage, costs, *kind)) for kind, n in kinds.items()]


def _micro_batch(setup: Setup, stage: Stage, costs: Sequence[Costs], gathers: bool, reduces: bool) -> MicroBatch:
    timeline = on_device = _timeline(setup, stage, costs, gathers, reduces, streams=False)
    if setup.strategy.offload != "none" or setup.strategy.offload_activations:
        timeline = _timeline(setup, stage, costs, gathers, reduces, streams=True)
    launches = sum(c.work.forward.launches + c.work.backward.launches for c in costs)
    attention_s = sum(c.work.forward.attention_s + c.work.backward.attention_s for c in costs)
    return MicroBatch(timeline, on_device, sum(sum(c.waited_s) for c in costs), launches, attention_s)


def _timeline(
    setup: Setup, stage: Stage, costs: Sequence[Costs], gathers: bool, reduces: bool, streams: bool
) -> Timeline:
    """Order the units, slowed by overlapped collectives: see [Note: contention]."""
    kinds = {c: _unit(setup, stage, c, gathers, reduces, streams) for c in set(costs)}
    units = [replace(kinds[c], name=f"blocks.{i}" if i >= 0 else "root") for i, c in enumerate(costs, start=-1)]
    found = _in_order(setup, stage, units, reduces)
    if not found.overlapped_s:
        return found
    slower = 1 + CONTENTION * found.overlapped_s / found.compute_s
    units = [replace(u, forward_s=slower * u.forward_s, backward_s=slower * u.backward_s) for u in units]
    return _in_order(setup, stage, units, reduces)


def _in_order(setup: Setup, stage: Stage, units: Sequence[Unit], reduces: bool) -> Timeline:
    s = setup.strategy
    if not setup.strategy.sharded[0]:
        return bucket_timeline(setup, stage, units, reduces)
    units = [_joined(units)] if s.wrap == "whole" else units
    keeps = s.sharding == "SHARD_GRAD_OP"
    return fsdp_step(units[0], units[1:], reshard_after_forward=not keeps, host_runs_ahead=True)


def _unit(setup: Setup, stage: Stage, costs: Costs, gathers: bool, reduces: bool, streams: bool) -> Unit:
    """Make a unit, with FSDP's copies: out of the gathered buffer, and of gradients into the buffer to be reduced."""
    name, weights = costs.unit, {ROOT: stage.root, BLOCK: stage.block, DENSE: stage.dense}[costs.unit]
    forward_s = costs.work.forward.seconds + costs.waited_s[0]
    backward_s = costs.work.backward.seconds + costs.waited_s[1]
    if streams:
        forward_s, backward_s = max(forward_s, costs.away_s), max(backward_s, costs.away_s)
    if not setup.strategy.sharded[0] or not weights:
        return Unit(name, forward_s, backward_s, 0.0, 0.0)
    sends_s: Counter[str] = Counter()
    for send in unit_sends(setup, name, weights):
        sends_s[send.kind] += seconds(setup, send)
    scales_s = sum(n_scales(setup, weights) * seconds(setup, s) for s in before_gathers(setup, name, weights))
    fetch_s, bring_s = stream_s(setup, weights) if streams else (0.0, 0.0)
    again = setup.strategy.sharding == "FULL_SHARD" and name != ROOT and setup.strategy.wrap == "block"
    out_s = gathers * copy_out_s(setup, weights)
    return Unit(
        name,
        forward_s + out_s,
        backward_s + again * out_s + reduces * copy_in_s(setup, weights),
        gathers * (sends_s["all_gather"] + scales_s + fetch_s),
        reduces * (sends_s["reduce_scatter"] + bring_s),
        reduces * sends_s["all_reduce"],
    )


def copy_out_s(setup: Setup, weights: tuple[Weight, ...]) -> float:
    """Seconds to copy parameters out of the buffer that they were gathered in: read and written."""
    return moved_s(setup, 2 * gathered_bytes(setup, weights)) if setup.shards > 1 else 0.0


def copy_in_s(setup: Setup, weights: tuple[Weight, ...]) -> float:
    """Seconds to copy gradients into the buffer to be reduced: read as computed, written as reduced."""
    b = setup.strategy.bytes
    read = (b.parameters if b.autocast else b.compute) / b.reduce
    return moved_s(setup, (read + 1) * gradient_bytes(setup, weights)) if setup.shards > 1 else 0.0


def messages_s(setup: Setup, recomputed: bool) -> tuple[float, float]:
    """Seconds of a block's messages that are not overlapped, forward and backward: see [Note: model parallel]."""
    if setup.strategy.tensor == setup.strategy.context == setup.strategy.expert == 1:
        return 0.0, 0.0
    tensor, ring, work = (f(setup, recomputed) for f in (tensor_sends, context_sends, block_work))
    experts = expert_sends(setup, recomputed)
    ahead = 1 - 1 / setup.strategy.context  # of the attention; a rank does not wait for its own keys and values
    forward_s = max(0.0, all_s(setup, ring["forward"]) - ahead * work.forward.attention_s)
    backward_s = max(0.0, all_s(setup, ring["backward"]) - ahead * work.backward.attention_s)
    between = {way: tensor[way] + experts[way] for way in ("forward", "backward")}
    hidden = hidden_s(setup)
    forward_s += all_s(setup, between["forward"]) - hidden[0]
    return forward_s, backward_s + all_s(setup, between["backward"]) - hidden[1]


def root_messages_s(setup: Setup, stage: Stage) -> tuple[float, float]:
    """Seconds of the root's messages: forward has half of them, and backward the other half."""
    half_s = all_s(setup, root_tensor_sends(setup)) * (stage.first + stage.last) / 2
    return half_s, half_s


def _joined(units: Sequence[Unit]) -> Unit:
    """Join all units in one."""
    costs = [f.name for f in fields(Unit) if f.name != "name"]
    return Unit("root", *(sum(getattr(u, cost) for u in units) for cost in costs))
