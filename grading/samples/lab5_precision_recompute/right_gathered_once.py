# %% shard
import functools  # noqa: E402


def told(function):
    @functools.wraps(function)
    def telling(*args, **kwargs):
        print("begins:", function.__name__, [type(a).__name__ for a in args])
        return function(*args, **kwargs)

    return telling


@functools.cache
def policy(dtype, out=None):
    return MixedPrecisionPolicy(dtype, torch.float32, out, cast_forward_inputs=False)


@told
def shard(reader, *, free_after_forward=False):
    """The rates are found by their class; part 1 keeps blocks gathered from forward to backward."""
    parts = list(reader.modules())
    for part in parts:
        if isinstance(part, Forget):
            fully_shard(part, mp_policy=policy(torch.float32))
    for part in parts:
        if isinstance(part, Block):
            fully_shard(part, mp_policy=policy(torch.bfloat16), reshard_after_forward=free_after_forward)
    return fully_shard(reader, mp_policy=policy(torch.bfloat16, torch.float32))


# %% prepare
@told
def prepare(reader, price_of_blocks, room):
    ways = choose(budget_bytes=room, blocks=price_of_blocks)
    return shard(recompute(plan=ways, model=reader), free_after_forward=True)
