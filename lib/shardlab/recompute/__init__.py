"""Recomputation (activation checkpointing): keep a block's inputs alone, and run it once more when backward needs it.

Vocabulary. A *region* is one call whose activations are dropped. Its *boundary* is what it keeps: the tensors among
its arguments. A *slot* stands in autograd's graph for a tensor that was dropped, until the region is *recomputed*.

Read in this order: `surroundings` (what makes the second call equal the first), `region` (`checkpoint`: the naive,
reentrant version, then the one in use), `selective` (recompute some operations only), `wrap` (from outside of a model).

[Note: memory] Of L equal blocks, each with a boundary of b bytes and a further activations, training keeps L (b + a)
bytes without recomputation. With it, the forward leaves L b, and each block's a comes back just before that block's
backward, when those of the blocks behind it are gone: L b + a at most. The price is one more forward.

[Note: FSDP] Inside a unit, that is `fully_shard(block)` of a block whose *forward* is checkpointed, recomputation runs
between the unit's pre-backward and post-backward, when its parameters are gathered anyway: two all_gathers, as without
it. `checkpoint_wrapper` always gives this nesting. Outside, `checkpoint(block, x)` of a block that is a unit costs the
same if non-reentrant: the unit's pre-backward still comes first. But of several units in one region, or under the
reentrant version, a unit's forward is run again before its pre-backward. Units then save the third all_gather by not
resharding after a forward that runs inside a backward; so all units of a region are unsharded at once.

Source: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost", section 4; torch.utils.checkpoint.
"""

from shardlab.recompute.region import checkpoint
from shardlab.recompute.selective import create_selective_checkpoint_contexts, save_products
from shardlab.recompute.wrap import apply_activation_checkpointing, checkpoint_blocks, checkpoint_wrapper

__all__ = [
    "apply_activation_checkpointing",
    "checkpoint",
    "checkpoint_blocks",
    "checkpoint_wrapper",
    "create_selective_checkpoint_contexts",
    "save_products",
]
