# %% shard
def shard(model):
    """Every layer that multiplies is a unit; what is left of a block is another."""
    exact = MixedPrecisionPolicy()
    half = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
    for block in model.blocks:
        for layer in list(block.modules()):
            if isinstance(layer, Forget):
                fully_shard(layer, mp_policy=exact)
            elif isinstance(layer, nn.Linear):
                fully_shard(layer, mp_policy=half)
        fully_shard(block, mp_policy=half)
    return fully_shard(model, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32, torch.float32, False))
