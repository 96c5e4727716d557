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


# %% recompute
from shardlab.recompute import checkpoint_wrapper  # noqa: E402
from shardlab.recompute import create_selective_checkpoint_contexts as our_contexts  # noqa: E402


def recompute(model, plan):
    for block, way in zip(model.blocks, plan, strict=True):
        if way != "keep":
            selective = {"context_fn": partial(our_contexts, [torch.ops.aten.mm.default])}
            checkpoint_wrapper(block, **(selective if way == "selective" else {}))
    return model
