"""Bytes that offloading moves: through a GPU's port to its host, and to and from its part of the host's drives.

    cpu    shards of parameters come in for each all_gather, gradients go out after each reduction
    nvme   in addition, the drives are read for each gather, and read and written by the optimizer

Activations go out in each micro-batch's forward, and come in for its backward.

If parameters are not sharded, gradients go out and updated parameters come in once a step.

Source: torch.distributed.fsdp's CPUOffloadPolicy; Ren et al. 2021, "ZeRO-Offload", section 4.1; Rajbhandari et al.
2021, "ZeRO-Infinity", section 5.1.
"""

from math import ceil

from shardplan.activations.away import away_bytes
from shardplan.planned_job import Setup
from shardplan.stage_parameters import Weight, stages
from shardplan.strategy import OPTIMIZERS
from shardplan.traffic.units import gathers, reductions, units


def host_bytes(setup: Setup) -> dict[str, float]:
    """Bytes of a rank in a step. "host": in and out; "nvme": read and written."""
    s = setup.strategy
    both_ways = 2 * s.accumulation * max(away_bytes(setup, stage) for stage in stages(setup))
    if s.offload == "none":
        return {"host": both_ways, "nvme": 0.0}
    cut = setup.strategy.sharded[0]
    fetched = brought = updated = 0.0
    for name, weights, count in units(stages(setup)[0]):
        weights = weights if cut else tuple(w for w in weights if w.trained)  # frozen weights stay where they are
        fetched += count * (gathers(setup, name) if cut else 1) * shard_bytes(setup, weights)
        brought += count * (reductions(setup) if cut else 1) * shard_bytes(setup, weights, gradients=True)
        updated += count * updated_bytes(setup, weights)
    on_drive = (fetched if cut else 0.0) + 2 * updated
    return {"host": fetched + brought, "nvme": on_drive if s.offload == "nvme" else 0.0}


def shard_bytes(setup: Setup, weights: tuple[Weight, ...], gradients: bool = False) -> float:
    """Bytes of a rank's share of weights or gradients, as held between steps."""
    each = setup.strategy.bytes.gradients
    return sum((each * w.trained if gradients else w.stored) * share_of(setup, w) for w in weights)


def updated_bytes(setup: Setup, weights: tuple[Weight, ...]) -> float:
    """Bytes of a rank's share that the optimizer changes: parameters, master weights, states."""
    b = setup.strategy.bytes
    count, each = OPTIMIZERS[setup.strategy.optimizer]
    states = count * (b.states if each is None else each)
    return sum((b.parameters + b.master + states) * share_of(setup, w) for w in weights if w.trained)


def share_of(setup: Setup, w: Weight) -> int:
    """Elements that this rank's optimizer updates."""
    return ceil(w.numel / setup.shards) if setup.strategy.sharded[2] else w.numel
