# %% shard
def shard(model):
    """Blocks take what they are given as it is; the exact units of all blocks are gathered in one message each way."""
    fully_shard(
        [block.memory.forget for block in model.blocks], mp_policy=MixedPrecisionPolicy(), reshard_after_forward=False
    )
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
    for block in reversed(model.blocks):
        fully_shard(block, mp_policy=policy)
    return fully_shard(model, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32, torch.float32, False))


# %% choose
def choose(blocks, budget_bytes):
    """From the last block backward: for each number of bytes that earlier blocks may hold, the cheapest rest."""
    rests = [(budget_bytes, 0, ())]  # earlier blocks hold at most, FLOPs from here on, ways from here on
    for block in reversed(blocks):
        longer = []
        for most, flops, ways in rests:
            for way, (n_bytes, more) in block.items():
                room = min(most - n_bytes, budget_bytes - block["keep"][0])
                if room >= 0:
                    longer.append((room, flops + more, (way, *ways)))
        rests = []
        for rest in sorted(longer, key=lambda rest: (-rest[0], rest[1])):
            if not rests or rest[1] < rests[-1][1]:
                rests.append(rest)
    return list(rests[-1][2]) if rests else None


# %% recompute
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper  # noqa: E402


def recompute(model, plan):
    for i, way in enumerate(plan):
        if way == "selective":
            contexts = partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])
            model.blocks[i] = checkpoint_wrapper(model.blocks[i], context_fn=contexts)
        elif way == "full":
            model.blocks[i] = checkpoint_wrapper(model.blocks[i])
    return model


# %% prepare
def prepare(model, blocks, activation_bytes):
    plan = choose(blocks, activation_bytes)
    return shard(recompute(model, plan))
