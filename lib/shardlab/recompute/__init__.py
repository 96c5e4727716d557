"""Recomputation (activation checkpointing): keep only a block's inputs, and run the block again when backward needs it.

Vocabulary. A *region* is one call whose activations are dropped. Its *boundary* is what it keeps: the tensors among its
arguments. A *slot* stands in autograd's graph for a dropped tensor until the region is *recomputed*.

Read in this order: `region` (`checkpoint`: the naive, reentrant version, then the one in use, and what makes the second
call equal the first), `selective` (recompute some operations only), `wrap` (apply it to a model).

[Note: memory] Take L equal blocks, each with a boundary of b bytes and further activations of a bytes. Training without
recomputation keeps L (b + a) bytes. With recomputation, forward leaves L b. Each block's a comes back just before that
block's backward, when the later blocks' activations are freed: L b + a at most. The price is one more forward.

[Note: FSDP] If a block's *forward* is checkpointed and `fully_shard(block)` makes it a unit, recomputation runs between
the unit's pre-backward and post-backward, when its parameters are gathered anyway: two all_gathers, as without
recomputation. `checkpoint_wrapper` always gives this nesting. The other nesting, `checkpoint(block, x)` of a block that
is a unit, costs the same if non-reentrant: the unit's pre-backward still comes first. But if a region contains several
units, or in the reentrant version, a unit's forward is run again before its pre-backward. Units then avoid a third
all_gather by not resharding after a forward that runs inside a backward. So all units of a region are unsharded at
once.

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
