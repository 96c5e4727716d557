"""Fully sharded data parallelism: a rank keeps 1/N of everything, and whole parameters only while they are used.

    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = AdamW(model.parameters())      # after sharding: the parameters are this rank's shards now

Vocabulary. A *unit* is a set of parameters that are gathered and freed together: those of one module, without those of
units inside it. To *shard* is to keep one's own part of a parameter; to *unshard*, to all_gather all parts into the
whole; to *reshard*, to free the whole again. An *all_gather_input* is what a rank sends of a unit, 1-D; the
*all_gather_output*, (N, S), holds the ranks' inputs below one another; a *reduce_scatter_input*, (N, S), holds the
unit's gradients, in row r what rank r is to keep. S counts the elements of a unit's shard, padding included. The
*layout* of a unit says which element belongs to which rank.

Read in this order: `ranks` and `slots` (among whom, and where in the model),
`per_parameter` (a `layout`), `unit` (what is held and sent), `schedule` (the hooks that make it happen in time), `api`
(`fully_shard`); then `flat_parameter` (the other layout), `wrapper` (the older interface) and, as you meet them,
`shardlab.nested_tensors`, `limiter`, and what names mistakes: `validate`, `freed`.

Source: Rajbhandari et al. 2020, "ZeRO", section 5; Zhao et al. 2023, "PyTorch FSDP", sections 3 and 4;
torch.distributed.fsdp.
"""

from torch.distributed.fsdp import (
    BackwardPrefetch,
    CPUOffload,
    CPUOffloadPolicy,
    MixedPrecision,
    MixedPrecisionPolicy,
    OffloadPolicy,
    ShardingStrategy,
)

from shardlab.fsdp.api import FSDPModule, fully_shard
from shardlab.fsdp.flat_parameter import FlatParameter, flat_intervals
from shardlab.fsdp.per_parameter import PerParameter
from shardlab.fsdp.wrapper import FullyShardedDataParallel

__all__ = [
    "BackwardPrefetch",
    "CPUOffload",
    "CPUOffloadPolicy",
    "FSDPModule",
    "FlatParameter",
    "FullyShardedDataParallel",
    "MixedPrecision",
    "MixedPrecisionPolicy",
    "OffloadPolicy",
    "PerParameter",
    "ShardingStrategy",
    "flat_intervals",
    "fully_shard",
]
