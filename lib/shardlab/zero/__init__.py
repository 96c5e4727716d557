"""ZeRO, stages 1 and 2: a rank keeps 1/N of the optimizer states, then of the gradients too.

    optimizer = ZeroRedundancyOptimizer(model.parameters(), AdamW, lr=1e-3)     # stage 1
    model = ShardedDataParallel(model, optimizer)                               # stage 2

Read `bucket_layout` (where parameters and gradients are stored, and which rank owns which part), `stage1`, `stage2`.

Source: Rajbhandari et al. 2020, "ZeRO" (SC20).
"""

from shardlab.zero.bucket_layout import Shard
from shardlab.zero.stage1 import ZeroRedundancyOptimizer
from shardlab.zero.stage2 import ShardedDataParallel

__all__ = ["Shard", "ShardedDataParallel", "ZeroRedundancyOptimizer"]
