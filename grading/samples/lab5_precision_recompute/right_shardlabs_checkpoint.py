# %% shard
def shard(model):
    """Units are modules: what is exact is wrapped by what is not, and each says what it takes in."""
    bf16 = {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32, "cast_forward_inputs": False}
    for module in model.modules():
        if isinstance(module, Forget):
            fully_shard(module, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float32))
    for module in [*model.blocks, model.output]:
        fully_shard(module, mp_policy=MixedPrecisionPolicy(**bf16), reshard_after_forward=module is not model.output)
    fully_shard(model, mp_policy=MixedPrecisionPolicy(**bf16))
    model.register_forward_hook(lambda module, args, logits: logits.float())
    return model


# %% choose
def choose(blocks, budget_bytes):
    """Level by level: for every number of bytes held, the cheapest way there; then what nothing beats in both."""
    fronts = [[(0, 0, ())]]
    for block in blocks:
        room = budget_bytes - block["keep"][0]
        reached = {}
        for held, flops, ways in fronts[-1]:
            for way in block if held <= room else ():
                now, cost = held + block[way][0], flops + block[way][1]
                if now not in reached or cost < reached[now][0]:
                    reached[now] = cost, (*ways, way)
        front, least = [], float("inf")
        for held in sorted(reached):
            if reached[held][0] < least:
                least = reached[held][0]
                front.append((held, *reached[held]))
        fronts.append(front)
    return list(fronts[-1][-1][2]) if fronts[-1] else None


# %% recompute
from shardlab.recompute import checkpoint_wrapper  # noqa: E402
from shardlab.recompute import create_selective_checkpoint_contexts as our_contexts  # noqa: E402


def recompute(model, plan):
    for block, way in zip(model.blocks, plan, strict=True):
        if way == "full":
            checkpoint_wrapper(block)
        if way == "selective":
            checkpoint_wrapper(block, context_fn=partial(our_contexts, [torch.ops.aten.mm.default]))
    return model


# %% prepare
def prepare(model, blocks, activation_bytes):
    model = recompute(model, choose(blocks, activation_bytes))
    return shard(model)
