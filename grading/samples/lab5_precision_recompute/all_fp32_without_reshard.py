# %% shard
def shard(model):
    for block in model.blocks:
        fully_shard(block, reshard_after_forward=False)
    return fully_shard(model)
