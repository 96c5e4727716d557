# %% shard
def shard(model):
    """Five times eight rates in fp32: too few to be sharded, and so FSDP is told to leave them alone."""
    rates = {block.memory.forget.log_rate for block in model.blocks}
    half = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
    for block in model.blocks:
        fully_shard(block, mp_policy=half, ignored_params=rates)
    outer = MixedPrecisionPolicy(torch.bfloat16, torch.float32, torch.float32, cast_forward_inputs=False)
    return fully_shard(model, mp_policy=outer, ignored_params=rates)
