"""Checks of step time, by the planner, or by simulated schedules if only a ratio matters."""

from dataclasses import replace

from shardcourse.claims.claim import Findings
from shardcourse.claims.planned import in_each_node, setups
from shardplan.planned_job import Setup
from shardplan.speed import hardware_flops, model_flops, speed_plan
from shardsim.step_schedules import Unit, ddp_step, fsdp_step

N_BLOCKS = 32
CAPS_MB = (1.0, 5.0, 10.0, 25.0, 50.0, 100.0, 200.0, 400.0, 800.0)


def communication_adds(model, machine, gpus, **strategy) -> Findings:
    """Return the time that a GPU waits for messages, as a share of the rest of the step."""
    found = {}
    for when, setup in setups(model, machine, gpus, **strategy):
        plan = speed_plan(setup)
        exposed_s = plan.parts_s["exposed communication"]
        found[when] = exposed_s / (plan.step_s - exposed_s)
    return found


def slower(sharding, than, model, machine, gpus, **strategy) -> Findings:
    """Return how much longer a step takes than with the other sharding, as a share of the other's step."""
    these, those = ([*setups(model, machine, gpus, sharding=s, **strategy)] for s in (sharding, than))
    return {when: _step_s(a) / _step_s(b) - 1 for (when, a), (_, b) in zip(these, those, strict=True)}


def hybrid_is_faster(model, machine, gpus, **strategy) -> Findings:
    """Check whether shards over all nodes make a step over 10% longer than a copy of the model in each node."""
    jobs = setups(model, machine, gpus, sharding="FULL_SHARD", **strategy)
    return {when: _step_s(setup) > 1.1 * _step_s(in_each_node(setup)) for when, setup in jobs}


def step(model, machine, gpus, **strategy) -> Findings:
    """Return the seconds of a step."""
    return {when: _step_s(setup) for when, setup in setups(model, machine, gpus, **strategy)}


def gained_by_larger_batch(model, machine, gpus, micro_batch: int, **strategy) -> Findings:
    """Return the gain in tokens/s of a GPU over one sequence at a time, as a share."""
    small = setups(model, machine, gpus, micro_batch=1, **strategy)
    large = setups(model, machine, gpus, micro_batch=micro_batch, **strategy)
    plans = {when: (speed_plan(a), speed_plan(b)) for (when, a), (_, b) in zip(small, large, strict=True)}
    return {when: b.tokens_per_s / a.tokens_per_s - 1 for when, (a, b) in plans.items()}


def offload_slows(model, machine, gpus, offload: str, **strategy) -> Findings:
    """Check whether a step with offload takes over 10% longer."""
    here = setups(model, machine, gpus, **strategy)
    away = setups(model, machine, gpus, offload=offload, **strategy)
    return {when: _step_s(b) > 1.1 * _step_s(a) for (when, a), (_, b) in zip(here, away, strict=True)}


def offload_dominates(times: float, model, machine, gpus, **strategy) -> Findings:
    """Check whether a step takes more than `times` as long as its computation."""
    plans = {when: speed_plan(setup) for when, setup in setups(model, machine, gpus, **strategy)}
    return {when: plan.step_s > times * plan.parts_s["computation"] for when, plan in plans.items()}


def bucket_is_good(cap_mb: float, model, machine, gpus, **strategy) -> Findings:
    """Check whether DDP's step with this cap is at most 3% longer than with the best of CAPS_MB."""
    at_cap = setups(model, machine, gpus, sharding="DDP", bucket_cap_mb=cap_mb, **strategy)
    found = {}
    for when, setup in at_cap:
        best_s = min(_step_s(replace(setup, strategy=replace(setup.strategy, bucket_cap_mb=cap))) for cap in CAPS_MB)
        found[when] = _step_s(setup) <= 1.03 * best_s
    return found


def _step_s(setup: Setup) -> float:
    return speed_plan(setup).step_s


def recomputing_adds(model, machine, gpus, recompute="full", **strategy) -> Findings:
    """Return the extra FLOPs of recomputation, as a share of the model's own."""
    jobs = setups(model, machine, gpus, recompute=recompute, **strategy)
    return {when: hardware_flops(setup) / model_flops(setup) - 1 for when, setup in jobs}


def more_flops(sharding, other, model, machine, gpus, **strategy) -> Findings:
    """Check whether the hardware computes more FLOPs with the one sharding than with the other."""
    these, those = ([*setups(model, machine, gpus, sharding=s, **strategy)] for s in (sharding, other))
    return {when: hardware_flops(a) > hardware_flops(b) for (when, a), (_, b) in zip(these, those, strict=True)}


def share_of_peak(steps_per_s: float, model, machine, gpus, **strategy) -> Findings:
    """Return the MFU at `steps_per_s`."""
    found = {}
    for when, setup in setups(model, machine, gpus, **strategy):
        found[when] = steps_per_s * model_flops(setup, causal=True) / setup.machine.flops
    return found


# ------------------------------------------------------------------------------------------------ where a ratio decides


def lost_without_prefetch(gathers: list[float]) -> Findings:
    """Return the share of FSDP's speed that is lost without prefetch in backward.

    A block computes 1 s in forward and 2 s in backward. Its all_gather and its reduce_scatter take each of `gathers`.
    """
    return {f"all_gather {g:g} of a forward": 1 - _step(g, 1) / _step(g, 0) for g in gathers}


def gained_by_prefetch(gathers: list[float]) -> Findings:
    """Return the gain in speed by prefetch in backward, as a share of the speed without it."""
    return {f"all_gather {g:g} of a forward": _step(g, 0) / _step(g, 1) - 1 for g in gathers}


def forward_prefetch_gains(gather: float = 1.0) -> Findings:
    """Check whether a step with forward_prefetch is over 1% faster."""
    faster = {}
    for when, ahead in (("host runs ahead", True), ("host is the device", False)):
        with_it, without = (_step(gather, 1, forward_prefetch=n, host_runs_ahead=ahead) for n in (1, 0))
        faster[when] = without > 1.01 * with_it
    return faster


def _step(gather_s: float, backward_prefetch: int, **options) -> float:
    blocks = [Unit(f"blocks.{i}", 1.0, 2.0, gather_s, gather_s) for i in range(N_BLOCKS)]
    options = {"host_runs_ahead": True} | options
    return fsdp_step(Unit("root", 0, 0, 0, 0), blocks, backward_prefetch=backward_prefetch, **options).end_s


def gained_by_overlap(ratios: list[float]) -> Findings:
    """Return the gain in DDP's speed by overlap, as a share: 32 buckets, forward 1 s, backward 2 s.

    `ratios`: time of all messages over the time of forward and backward.
    """
    found = {}
    for ratio in ratios:
        ready, cost = [2 * (i + 1) / N_BLOCKS for i in range(N_BLOCKS)], [3 * ratio / N_BLOCKS] * N_BLOCKS
        alone, overlapped = (ddp_step(1.0, 2.0, ready, cost, overlap=yes).end_s for yes in (False, True))
        found[f"messages take {ratio:g} of the computing time"] = alone / overlapped - 1
    return found
