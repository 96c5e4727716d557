# %% shard
def shard(model, average=True):
    if average:
        model.average = [p.detach().clone() for p in model.parameters()]
    exact = MixedPrecisionPolicy(torch.float32, torch.float32)
    half = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
    for block in model.blocks:
        fully_shard(block.memory.forget, mp_policy=exact)
        fully_shard(block, mp_policy=half)
    outer = MixedPrecisionPolicy(torch.bfloat16, torch.float32, torch.float32, cast_forward_inputs=False)
    return fully_shard(model, mp_policy=outer)


# %% prepare
def prepare(model, blocks, activation_bytes):
    return shard(recompute(model, choose(blocks, activation_bytes)), average=False)
