"""Exposed communication by message: how long a step's computation waits for each.

For data parallelism's collectives, this is what the timeline leaves exposed; if two run at once, the time counts for
both. Messages between two products, or after backward, are not overlapped.
"""

from collections import Counter
from collections.abc import Iterable

from shardplan.planned_job import Setup
from shardplan.speed.micro_batch import MicroBatch
from shardplan.traffic.groups import group

COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce")


def waits_s(
    setup: Setup, batches: Iterable[tuple[int, MicroBatch]], after_backward_s: float, tied_s: float
) -> dict[str, float]:
    """Return {"all_gathers between nodes": seconds of a step, ...} for a stage's micro-batches, the longest first."""
    found: Counter[str] = Counter()
    for times, batch in batches:
        for kind in COLLECTIVES:
            found[_collectives(setup, kind)] += times * batch.on_device.exposed_of(kind)
        found[_model_parallel(setup)] += times * batch.waited_s
    found[_of_the_update(setup)] += after_backward_s
    found[f"the gradient of the tied matrix, {_link(setup, 'pipeline')}"] += tied_s
    return {words: seconds for words, seconds in found.most_common() if seconds > 0}


def _collectives(setup: Setup, kind: str) -> str:
    """Name a collective and its link. The timeline calls each bucket's reduction an all_reduce, also ZeRO-2's."""
    if kind != "all_reduce":
        return f"{kind}s {_link(setup, 'shard')}"
    if setup.strategy.sharding == "ZERO_2":
        return f"reduce_scatters {_link(setup, 'shard')}"
    return f"all_reduces {_link(setup, 'replicate' if setup.strategy.sharded[0] else 'data')}"


def _model_parallel(setup: Setup) -> str:
    names = [name for name in ("tensor", "context", "expert") if getattr(setup.strategy, name) > 1]
    return f"messages of {' and '.join(names)} parallelism {_link(setup, *names)}"


def _of_the_update(setup: Setup) -> str:
    of_update = {"muon": ["Muon's messages"]}.get(setup.strategy.optimizer, [])
    of_update += ["scales of fp8"] if setup.strategy.gather == "fp8" else []
    if of_update:
        return f"{' and '.join(of_update)}, after backward, {_link(setup, 'shard')}"
    if setup.strategy.sharding == "DDP+ZERO_1":
        return f"broadcasts of updated parameters {_link(setup, 'data')}"
    reduced = "gradients and " if setup.strategy.sharding == "ZERO_1" else ""
    return f"messages of {reduced}updated parameters, after backward, {_link(setup, 'shard')}"


def _link(setup: Setup, *groups: str) -> str:
    return "between nodes" if any(group(setup, name).nodes > 1 for name in groups) else "inside the node"
