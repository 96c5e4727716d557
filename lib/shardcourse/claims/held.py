"""Checks of what a rank holds, by the planner's closed forms. GB are 1e9 bytes, as on the pages."""

from shardcourse.claims.claim import Findings
from shardcourse.claims.planned import PRECISIONS, setups
from shardplan.memory import memory_plan
from shardplan.memory.live import total
from shardplan.memory.states import gradients, optimizer_states, parameters
from shardplan.planned_job import Setup
from shardplan.records import Plan
from shardplan.stage_parameters import stages

GB = 1e9
DEEPSPEED_BUCKET = 5e8  # numbers, the default of reduce_bucket_size


def states(model, gpus, sharding, precision=PRECISIONS, machine="dgx-h100", **strategy) -> Findings:
    """Return the GB of parameters, gradients and optimizer states after backward: nothing gathered, no activations."""
    jobs = setups(model, machine, gpus, sharding=sharding, precision=precision, **strategy)
    return {when: _held(setup) / GB for when, setup in jobs}


PARTS = {"parameters": lambda *of: (parameters(*of),), "gradients": lambda *of: (gradients(*of),)}
PARTS["optimizer"] = optimizer_states


def _held(setup: Setup, which: str = "states") -> float:
    """Bytes of one of PARTS, or of all of them, each on the stage where it is largest."""
    counted = PARTS if which == "states" else [which]
    return sum(max(total(PARTS[name](setup, stage)) for stage in stages(setup)) for name in counted)


def part(which, model, gpus, sharding, precision=PRECISIONS, machine="dgx-h100", **strategy) -> Findings:
    """Return the GB of one of PARTS."""
    jobs = setups(model, machine, gpus, sharding=sharding, precision=precision, **strategy)
    return {when: _held(setup, which) / GB for when, setup in jobs}


def bytes_each(model, precision, which="states", optimizer="adamw") -> Findings:
    """Return the bytes a parameter of the states (or of one of PARTS), unsharded."""
    jobs = setups(model, "dgx-h100", 1, sharding="DDP", precision=precision, optimizer=optimizer)
    return {when: _held(setup, which) / setup.shape.n_params for when, setup in jobs}


def in_precision(model, wanted: str, over: str, precision=PRECISIONS) -> Findings:
    """Return the bytes of one of PARTS divided by the bytes of another."""
    jobs = setups(model, "dgx-h100", 1, sharding="DDP", precision=precision)
    return {when: _held(setup, wanted) / _held(setup, over) for when, setup in jobs}


def times_less(model, gpus, sharding, precision=PRECISIONS, which="states", machine="dgx-h100") -> Findings:
    """Return DDP's bytes of states (or of one of PARTS) divided by the bytes under `sharding`."""
    sharded = setups(model, machine, gpus, sharding=sharding, precision=precision)
    whole = setups(model, machine, gpus, sharding="DDP", precision=precision)
    return {when: _held(b, which) / _held(a, which) for (when, a), (_, b) in zip(sharded, whole, strict=True)}


def share_saved(model, gpus, sharding, precision=PRECISIONS, machine="dgx-h100") -> Findings:
    """Return the share of DDP's states that `sharding` saves."""
    return {
        when: 1 - 1 / times for when, times in times_less(model, gpus, sharding, precision, machine=machine).items()
    }


def peak(model, machine, gpus, **strategy) -> Findings:
    """Return the GB of tensors at the peak of a step."""
    return {when: memory_plan(setup).allocated_bytes / GB for when, setup in setups(model, machine, gpus, **strategy)}


def with_drives(model, machine, gpus, **strategy) -> Findings:
    """Return the least GB on a GPU: with FSDP's units, as nvidia-smi would show it, and DeepSpeed's tensors alone.

    DeepSpeed has no root unit. It holds at least the output layer's weight, its gradient and one reduce bucket, all in
    bf16, and the activations.
    """
    found = {}
    for when, setup in setups(model, machine, gpus, **strategy):
        plan = memory_plan(setup)
        [last] = [m.by_category() for m in plan.moments if m.name == "backward of the output layer"]
        held = 4 * setup.shape.vocab_size * setup.shape.dim + 2 * DEEPSPEED_BUCKET
        found[f"FSDP's units, {when}"] = plan.device_bytes[0] / GB
        found[f"DeepSpeed, {when}"] = (held + last["activations"] + last["temporaries"]) / GB
    return found


def fits(model, machine, gpus, **strategy) -> Findings:
    """Return "yes", "maybe" or "no": does the job fit?"""
    jobs = setups(model, machine, gpus, **strategy)
    return {when: Plan(setup, memory_plan(setup), None).fits for when, setup in jobs}


def activations(model, machine, gpus, **strategy) -> Findings:
    """Return the peak GB of activations and temporaries in forward and backward."""
    found = {}
    for when, setup in setups(model, machine, gpus, **strategy):
        moments = [m.by_category() for m in memory_plan(setup).moments if m.phase != "optimizer"]
        found[when] = max(m["activations"] + m["temporaries"] for m in moments) / GB
    return found


def activations_saved(model, machine, gpus, recompute="full", **strategy) -> Findings:
    """Return the share of the activation peak that recomputation saves."""
    found = {}
    before, after = ([*setups(model, machine, gpus, recompute=how, **strategy)] for how in ("none", recompute))
    for (when, whole), (_, less) in zip(before, after, strict=True):
        found[when] = 1 - _most_activations(less) / _most_activations(whole)
    return found


def _most_activations(setup: Setup) -> float:
    return max(moment.by_category()["activations"] for moment in memory_plan(setup).moments)
