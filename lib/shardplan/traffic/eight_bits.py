"""Messages of the scales, if FSDP gathers matrices in fp8 with a scale for each: ranks agree on the largest number.

A float32 for each matrix: before each gather of it, or for all of them in one message after the update. Scales of rows
are known to the rank that has the row. They travel with the codes, and need no message.

Source: torchao.float8.fsdp_utils, WeightWithDynamicFloat8CastTensor and precompute_float8_dynamic_scale_for_fsdp.
"""

from shardplan.planned_job import Setup
from shardplan.stage_parameters import Stage, Weight
from shardplan.traffic.groups import group
from shardplan.traffic.messages import Send
from shardplan.traffic.units import gathers, units

SCALE_BYTES = 4


def n_scales(setup: Setup, weights: tuple[Weight, ...]) -> int:
    """Count the matrices that are gathered in fp8 with a scale of their own."""
    if setup.strategy.gather not in ("fp8", "fp8-each") or not setup.strategy.sharded[0]:
        return 0
    return sum(len(w.shape) == 2 and setup.strategy.eight_bits(w.name) for w in weights)


def before_gathers(setup: Setup, name: str, weights: tuple[Weight, ...]) -> list[Send]:
    """Messages of one unit in a step."""
    if setup.strategy.gather != "fp8-each":
        return []
    times = n_scales(setup, weights) * gathers(setup, name)
    return [Send("all_reduce", f"a scale of {name}", group(setup, "shard"), SCALE_BYTES, times)]


def after_update(setup: Setup, stage: Stage) -> list[Send]:
    """Return the one message of all scales."""
    if setup.strategy.gather != "fp8":
        return []
    n = sum(n_scales(setup, weights) * count for _, weights, count in units(stage))
    return [Send("all_reduce", "all scales", group(setup, "shard"), SCALE_BYTES * n, 1)]
