# %% choose
def choose(blocks, budget_bytes):
    beginnings = [(0, 0, [])]
    for block in blocks:
        longer = [(h + b, f + c, [*p, way]) for h, f, p in beginnings for way, (b, c) in block.items()]
        beginnings = []
        for candidate in sorted(longer):
            if candidate[0] <= budget_bytes and (not beginnings or candidate[1] < beginnings[-1][1]):
                beginnings.append(candidate)
    return beginnings[-1][2] if beginnings else None


# %% prepare
def peak_of(blocks, plan):
    held = most = 0
    for block, way in zip(blocks, plan, strict=True):
        most = max(most, held + block["keep"][0])
        held += block[way][0]
    return most


def prepare(model, blocks, activation_bytes):
    from itertools import product

    plans = [p for p in product(blocks[0], repeat=len(blocks)) if peak_of(blocks, p) <= activation_bytes]
    cheapest = min(plans, key=lambda p: sum(block[way][1] for block, way in zip(blocks, p, strict=True)))
    return shard(recompute(model, cheapest))
