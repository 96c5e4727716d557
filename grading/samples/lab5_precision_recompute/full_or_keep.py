# %% choose
def choose(blocks, budget_bytes):
    """Blocks from the first one on in full, as few as will do."""

    def peak(n):
        held = most = 0
        for i, block in enumerate(blocks):
            most = max(most, held + block["keep"][0])
            held += block["full" if i < n else "keep"][0]
        return most

    for n in range(len(blocks) + 1):
        if peak(n) <= budget_bytes:
            return ["full"] * n + ["keep"] * (len(blocks) - n)
    return None


# %% recompute
def recompute(model, plan):
    for block, way in zip(model.blocks, plan, strict=True):
        if way != "keep":
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    return model
