# %% shard
def shard(model):
    half = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
    for block in model.blocks:
        fully_shard(block.memory.forget, mp_policy=MixedPrecisionPolicy(torch.float32))
        fully_shard(block, mp_policy=half)
    fully_shard(model.embedding, mp_policy=half)
    outer = MixedPrecisionPolicy(torch.bfloat16, torch.float32, torch.float32, cast_forward_inputs=False)
    return fully_shard(model, mp_policy=outer, reshard_after_forward=True)
