"""Fully sharded data parallelism: each rank keeps 1/N of everything, and whole parameters only while it uses them.

    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = AdamW(model.parameters())      # after sharding: the parameters are this rank's shards now

Vocabulary. A *unit* is a set of parameters that are gathered and freed together: those of one module, without those of
units inside it. A rank *shards* a parameter by keeping its own part, *unshards* it by an all_gather of all parts, and
*reshards* it by freeing the whole. S is the number of elements in a unit's shard, padding included. The
*all_gather_input*, (S,), is this rank's part of a unit; the *all_gather_output*, (N, S), has a row for each rank. The
*reduce_scatter_input*, (N, S), holds the unit's gradients: rank r keeps row r. The unit's *layout* says which element
belongs to which rank.

Read in this order: `param` (a parameter's places, shards and memory), `unit` (what is held and sent), `schedule` (the
hooks that trigger it), `api` (`fully_shard`); then `flat_parameter` (the other layout) and `validate` (checks that find
mistakes early). `shardlab.shard_groups` has the process groups over which parameters are sharded.

Source: Rajbhandari et al. 2020, "ZeRO", section 5; Zhao et al. 2023, "PyTorch FSDP", sections 3 and 4;
torch.distributed.fsdp.
"""

from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy

from shardlab.fsdp.api import FSDPModule, fully_shard
from shardlab.fsdp.flat_parameter import FlatParameter
from shardlab.fsdp.param import PerParameter

__all__ = ["CPUOffloadPolicy", "FSDPModule", "FlatParameter", "MixedPrecisionPolicy", "OffloadPolicy"]
__all__ += ["PerParameter", "fully_shard"]
