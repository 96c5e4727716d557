# %% shard
import warnings

from torch.distributed.fsdp import BackwardPrefetch, FullyShardedDataParallel, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


def shard(model, lr):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        model = FullyShardedDataParallel(
            model,
            sharding_strategy=ShardingStrategy.FULL_SHARD,
            auto_wrap_policy=ModuleWrapPolicy({Block}),
            backward_prefetch=BackwardPrefetch.BACKWARD_PRE,
            device_id=local_device(),
            use_orig_params=True,
        )
    return model, torch.optim.AdamW(model.parameters(), lr=lr, foreach=True)


# %% shard_and_checkpoint
from functools import partial

from torch.utils.checkpoint import checkpoint


def shard_and_checkpoint(model, lr):
    for block in model.blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False)
    return shard(model, lr)
