# %% choose
def choose(blocks, budget_bytes):
    from itertools import product

    best = None
    for plan in product(blocks[0], repeat=len(blocks)):
        held = most = flops = 0
        for block, way in zip(blocks, plan, strict=True):
            most = max(most, held + block["keep"][0])
            held, flops = held + block[way][0], flops + block[way][1]
        if most <= budget_bytes and (best is None or flops < best[0]):
            best = flops, list(plan)
    return best and best[1]
