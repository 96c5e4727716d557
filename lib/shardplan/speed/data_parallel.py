"""DDP and ZeRO without sharded parameters: backward fills buckets, and each full bucket is sent while backward goes on.

Buckets fill in the order in which backward makes gradients: the output layer's, the blocks' from the last to the first,
the embedding's. Within a unit, a gradient's share of the unit's backward is its share of the unit's parameters.

Source: Li et al. 2020, "PyTorch Distributed", section 3.2; Rajbhandari et al. 2020, section 7.
"""

from collections.abc import Iterator, Sequence

from shardplan.planned_job import Setup
from shardplan.speed.collectives import seconds
from shardplan.speed.kernels import moved_s
from shardplan.stage_parameters import Stage, Weight
from shardplan.traffic.groups import group
from shardplan.traffic.messages import Send
from shardplan.traffic.units import held_bytes
from shardsim.step_schedules import Unit, ddp_step
from shardtrace.timeline import Timeline

Ready = tuple[float, float]  # bytes of a bucket, seconds of backward until it is full


def bucket_timeline(setup: Setup, stage: Stage, units: Sequence[Unit], reduces: bool) -> Timeline:
    """Timeline of one micro-batch. In ZERO_1 gradients wait for the end of the step."""
    sharding = setup.strategy.sharding
    sends = reduces and sharding not in ("NONE", "ZERO_1") and setup.data_ranks > 1
    filled = list(buckets(setup, stage, units)) if sends else []
    kind = "all_reduce" if sharding.startswith("DDP") else "reduce_scatter"
    took_s = {n_bytes: seconds(setup, _send(setup, kind, n_bytes)) for n_bytes in {n for n, _ in filled}}
    view = setup.strategy.gradient_as_bucket_view and kind == "all_reduce"
    copied_s = 0.0 if view else moved_s(setup, 4 * sum(n for n, _ in filled))  # in and out: each read and written
    backward_s = sum(u.backward_s for u in units)
    later = 1 + copied_s / backward_s  # the copies are spread over backward
    return ddp_step(
        sum(u.forward_s for u in units),
        later * backward_s,
        [later * ready_s for _, ready_s in filled],
        [took_s[n_bytes] for n_bytes, _ in filled],
    )


def after_backward_s(setup: Setup, stage: Stage) -> float:
    """Seconds of ZeRO's messages at the optimizer's step, during which nothing computes."""
    sharding, cap = setup.strategy.sharding, setup.strategy.bucket_cap_mb * 2**20
    if sharding not in ("DDP+ZERO_1", "ZERO_1", "ZERO_2") or setup.data_ranks == 1:
        return 0.0
    held = held_bytes(setup, stage.weights)
    if sharding == "DDP+ZERO_1":
        return seconds(setup, _send(setup, "broadcast", held))
    n_buckets = max(1.0, held / cap)
    gathered_s = n_buckets * seconds(setup, _send(setup, "all_gather", held / n_buckets))
    reduced = sum(setup.strategy.bytes.reduce * w.numel for w in stage.weights if w.trained) / n_buckets
    reduced_s = n_buckets * seconds(setup, _send(setup, "reduce_scatter", reduced))
    return gathered_s + (reduced_s if sharding == "ZERO_1" else 0.0)


def buckets(setup: Setup, stage: Stage, units: Sequence[Unit]) -> Iterator[Ready]:
    """Yield the buckets. Each closes when its cap is reached. DDP's first is small, so communication begins early."""
    cap = first_cap = setup.strategy.bucket_cap_mb * 2**20
    if setup.strategy.sharding.startswith("DDP"):
        first_cap = min(cap, 2**20)
    n_bytes, limit, ready_s = 0.0, first_cap, 0.0
    for weight, ready_s in gradients_in_order(stage, units):
        n_bytes += weight.numel * setup.strategy.bytes.reduce
        if n_bytes >= limit:
            yield n_bytes, ready_s
            n_bytes, limit = 0.0, cap
    if n_bytes:
        yield n_bytes, ready_s


def gradients_in_order(stage: Stage, units: Sequence[Unit]) -> Iterator[tuple[Weight, float]]:
    """Yield (weight, seconds of backward until its gradient is made), for all trained weights."""
    root, *blocks = units
    last = [w for w in stage.root if not w.name.startswith(("embedding", "positions"))]
    first = [w for w in stage.root if w not in last]
    begun_s = 0.0
    numbered = reversed([(stage.of_block(number), b.backward_s) for number, b in enumerate(blocks, 1)])
    for weights, backward_s in ((last, root.backward_s), *numbered):
        yield from _of_a_unit(weights, begun_s, backward_s)
        begun_s += backward_s
    yield from _of_a_unit(first, begun_s, 0.0)


def _of_a_unit(weights: Sequence[Weight], begun_s: float, backward_s: float) -> Iterator[tuple[Weight, float]]:
    total, made = sum(w.numel for w in weights), 0
    for w in reversed(weights):
        made += w.numel
        if w.trained:
            yield w, begun_s + backward_s * made / total


def _send(setup: Setup, kind: str, n_bytes: float) -> Send:
    of_all = kind in ("all_reduce", "broadcast")
    return Send(kind, "a bucket", group(setup, "data" if of_all else "shard"), n_bytes, 1)
