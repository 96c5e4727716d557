"""The planner's memory compared with this machine's own ranks, on its tier's device, model and batch.

`plan_measured` compares many configurations on CPU ranks. This is the short form for any machine: six strategies, each
trained for two steps, the third measured. On a GPU the measure is torch.cuda.max_memory_allocated, which knows nothing
of our tracker; on CPU ranks it is the tracker's.
"""

import statistics
from collections.abc import Iterator

from shardbench.engines import TORCH
from shardbench.plan_ranks import WARM_UP_STEPS, batch, build, gpu_peak, peak, step
from shardlab import launch
from shardlab.measure.step_time import time_step
from shardlab.tier import Tier, detect
from shardplan.memory import memory_plan
from shardplan.planned_job import Setup
from shardplan.shape import Shape
from shardplan.strategy import Strategy
from shardsim.machines import machine

TIMED_STEPS = 5
STRATEGIES: dict[str, dict] = {
    "FSDP": {"sharding": "FULL_SHARD"},
    "FSDP, every block recomputed": {"sharding": "FULL_SHARD", "recompute": "full"},
    "FSDP without resharding after forward": {"sharding": "SHARD_GRAD_OP"},
    "DDP": {"sharding": "DDP", "gradient_as_bucket_view": True},
    "ZeRO-1": {"sharding": "ZERO_1"},
    "ZeRO-2": {"sharding": "ZERO_2"},
}


def run(tier_name: str | None = None) -> dict:
    """Return a row for each of STRATEGIES: planned and measured peak bytes, and the seconds of a step."""
    tier = detect(tier_name)
    rows = [_row(name, setup, tier) for name, setup in setups(tier)]
    return {"tier": tier.name, "rows": rows}


def setups(tier: Tier) -> Iterator[tuple[str, Setup]]:
    shape = Shape.of(tier.name, tier.model)
    sizes = {"micro_batch": tier.micro_batch, "seq_len": tier.seq_len, "precision": "fp32"}
    for name, strategy in STRATEGIES.items():
        setup = Strategy(optimizer_kernel="foreach", **sizes | strategy)
        yield name, Setup(shape, machine("dgx-h100"), tier.world_size, setup)


def _row(name: str, setup: Setup, tier: Tier) -> dict:
    on_gpu = tier.device == "cuda"
    ranks = launch(_on_gpu if on_gpu else _on_cpu, tier.world_size, setup, device=tier.device, timeout_s=600)
    planned = memory_plan(setup, on_gpu=on_gpu)
    return {
        "strategy": name,
        "planned_bytes": planned.max_memory_allocated if on_gpu else planned.allocated_bytes,
        "measured_bytes": max(measured for measured, _ in ranks),
        "step_s": max(seconds for _, seconds in ranks),
    }


def _on_cpu(setup: Setup) -> tuple[int, float]:
    measured = peak(setup).peak_bytes
    return measured, _seconds(setup)


def _on_gpu(setup: Setup) -> tuple[int, float]:
    measured = gpu_peak(setup, build(setup, TORCH), batch(setup))
    return measured, _seconds(setup)


def _seconds(setup: Setup) -> float:
    """Median seconds of a step on the slowest rank."""
    engine, data = build(setup, TORCH), batch(setup)
    times = [time_step(lambda: step(setup, engine, *data)) for _ in range(WARM_UP_STEPS + TIMED_STEPS)]
    return statistics.median(times[WARM_UP_STEPS:])
