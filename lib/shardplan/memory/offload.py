"""Memory on the device, on the host and on an NVMe disk, when states are offloaded.

FSDP (CPUOffloadPolicy): the shards of parameters, their gradients and the optimizer live on the host; the device holds
nothing between steps, and in a step what `gathering` holds. Others (ZeRO-Offload, CPUOffloadOptimizer): the device
keeps the parameters; the host keeps what the optimizer updates: its own copy of this rank's share (or the masters),
gradients and states. ZeRO sends gradients there bucket by bucket; a single rank sends each as it is made. DDP would
have to keep them until all ranks have added theirs; the planner refuses it.

With an NVMe disk (ZeRO-Infinity), the states and the copy or shards are on the disk. They stream through two buffers on
the host, each as large as the largest unit's part: one is read while the other is written.

Activations that are offloaded are on the host for each micro-batch in flight.

Source: Ren et al. 2021, "ZeRO-Offload", section 4; Rajbhandari et al. 2021, "ZeRO-Infinity", section 6.3.
"""

from shardplan.activations.away import away_bytes
from shardplan.memory import states
from shardplan.memory.live import total
from shardplan.planned_job import Setup
from shardplan.records import Term
from shardplan.stage_parameters import Stage

STREAMING_BUFFERS = 2


def on_device(setup: Setup, stage: Stage) -> tuple[Term, ...]:
    """Terms that are on the device between steps."""
    if setup.strategy.offload == "none":
        return (states.parameters(setup, stage), *states.optimizer_states(setup, stage))
    return () if setup.strategy.sharded[0] else (states.parameters(setup, stage),)


def away(setup: Setup, stage: Stage) -> tuple[float, float]:
    """Bytes of one rank on the host and on the disk."""
    host_bytes, nvme_bytes = _states_away(setup, stage)
    return host_bytes + stage.in_flight * away_bytes(setup, stage), nvme_bytes


def _states_away(setup: Setup, stage: Stage) -> tuple[float, float]:
    if setup.strategy.offload == "none":
        return 0.0, 0.0
    updated = _copy_bytes(setup, stage) + total(states.optimizer_states(setup, stage))
    shards = states.shards_of_states(setup, stage)
    gradients = setup.strategy.bytes.gradients * sum(shards)
    if setup.strategy.offload == "cpu":
        return updated + gradients, 0.0
    largest = max(sum(w.numel for w in unit) for unit in (stage.root, stage.block, stage.dense))
    part = largest / sum(w.numel for w in stage.weights)
    return gradients + STREAMING_BUFFERS * part * updated, updated


def _copy_bytes(setup: Setup, stage: Stage) -> float:
    """Bytes of the shards under FSDP; else of the optimizer's own copy, or 0 if that is the master."""
    if setup.strategy.sharded[0]:
        return states.parameters(setup, stage).n_bytes
    b = setup.strategy.bytes
    return 0.0 if b.master else b.parameters * sum(states.shards_of_states(setup, stage))
