"""Messages of data parallelism, in all its strategies: parameters and gradients.

Psi is the bytes of the parameters that a rank's shard group shares (a stage's, a tensor-parallel rank's part of it), N
the group's size. A ring sends (N-1)/N of the unsharded size in an all_gather or reduce_scatter, twice that in an
all_reduce. `shardplan.formulas` computes the same for the data-parallel strategies in another way.

    strategy         for each micro-batch, or once a step where that is said
    FULL_SHARD       all_gather of Psi in forward and in backward (the root: once), reduce_scatter
    SHARD_GRAD_OP    all_gather, reduce_scatter
    hybrid           also an all_reduce of the shard's gradients among the replicas
    DDP              all_reduce of the gradients
    ZERO_2           reduce_scatter; once a step, an all_gather of the updated parameters
    ZERO_1           both once a step
    DDP+ZERO_1       DDP's all_reduce; once a step, broadcasts of the updated parameters

`accumulate_unsharded` reduces gradients once a step.

Source: Rajbhandari et al. 2020, "ZeRO", section 7; Zhao et al. 2023, "PyTorch FSDP", section 3.2.
"""

from collections.abc import Iterable
from dataclasses import replace

from shardplan.planned_job import Setup
from shardplan.stage_parameters import Stage, Weight
from shardplan.traffic.eight_bits import after_update, before_gathers
from shardplan.traffic.groups import group
from shardplan.traffic.messages import Send
from shardplan.traffic.units import gathered_bytes, gathers, gradient_bytes, held_bytes, reductions, units


def data_parallel(setup: Setup, stage: Stage) -> Iterable[Send]:
    for name, weights, count in units(stage):
        for send in (*unit_sends(setup, name, weights), *before_gathers(setup, name, weights)):
            yield replace(send, times=send.times * count)
    yield from after_update(setup, stage)


def unit_sends(setup: Setup, name: str, weights: tuple[Weight, ...]) -> list[Send]:
    """Return the messages of one unit in a step: "a block", or "the root", which is all that is outside the blocks.

    Experts that are on different ranks have messages of their own: fewer ranks share them.
    """
    experts = tuple(w for w in weights if w.spread > 1)
    others = tuple(w for w in weights if w.spread == 1)
    found = _unit_sends(setup, name, others)
    return found + _unit_sends(setup, name, experts, "same experts") if experts else found


def _unit_sends(setup: Setup, name: str, weights: tuple[Weight, ...], among: str = "shard") -> list[Send]:
    sharding, data = setup.strategy.sharding, group(setup, "data")
    shard, replicate = group(setup, among), group(setup, "replicate")
    whole, times = gradient_bytes(setup, weights), reductions(setup)
    parameters, gradients = f"parameters of {name}", f"gradients of {name}"
    if sharding == "NONE":
        return []
    if sharding == "DDP":
        return [Send("all_reduce", gradients, data, whole, times)]
    if sharding == "DDP+ZERO_1":
        updated = Send("broadcast", parameters, data, held_bytes(setup, weights), 1)
        return [Send("all_reduce", gradients, data, whole, times), updated]
    if setup.strategy.sharded[0]:
        gathered = Send("all_gather", parameters, shard, gathered_bytes(setup, weights), gathers(setup, name))
    else:
        gathered = Send("all_gather", parameters, shard, held_bytes(setup, weights), 1)
    among_replicas = Send("all_reduce", f"a shard of {gradients}", replicate, whole / shard.size, times)
    return [gathered, Send("reduce_scatter", gradients, shard, whole, times), among_replicas]
