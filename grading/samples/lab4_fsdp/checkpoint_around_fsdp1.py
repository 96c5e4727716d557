# %% shard_and_checkpoint
import warnings

from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def shard_and_checkpoint(model, lr):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        for i, block in enumerate(model.blocks):
            unit = FSDP(block, device_id=local_device())
            model.blocks[i] = checkpoint_wrapper(unit, checkpoint_impl=CheckpointImpl.REENTRANT)
        model = FSDP(model, device_id=local_device())
    return model, torch.optim.AdamW(model.parameters(), lr=lr)
