# %% largest_ddp_depth
def largest_ddp_depth(budget_bytes, config, micro_batch, seq_len):
    def fits(n_layers):
        data = [torch.randint(config.vocab_size, (micro_batch, seq_len)) for _ in range(2)]
        model, optimizer = ddp(Transformer(replace(config, n_layers=n_layers)), 1e-3)
        try:
            with MemoryBudget(budget_bytes, model, optimizer):
                for _ in range(2):
                    model(*data).backward()
                    optimizer.step()
                    optimizer.zero_grad()
        except torch.OutOfMemoryError:
            return False
        return True

    low, high = 1, 2  # low fits, high does not
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


# %% shard
def shard_units(model, lr, **options):
    for unit in [*reversed(model.blocks), model]:
        fully_shard(unit, reshard_after_forward=unit is not model, **options)
    return model, torch.optim.AdamW([{"params": [p]} for p in model.parameters()], lr=lr, foreach=False)


def shard(model, lr):
    return shard_units(model, lr)


# %% shard_and_checkpoint
from functools import partial

from torch.utils.checkpoint import checkpoint


def shard_and_checkpoint(model, lr):
    for block in model.blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    return shard_units(model, lr)


# %% shard_and_offload
def shard_and_offload(model, lr):
    return shard_units(model, lr, offload_policy=CPUOffloadPolicy(pin_memory=tier.device == "cuda"))
