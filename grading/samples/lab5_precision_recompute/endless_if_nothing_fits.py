# %% choose
def peak_of(blocks, plan):
    held = most = 0
    for block, way in zip(blocks, plan, strict=True):
        most = max(most, held + block["keep"][0])
        held += block[way][0]
    return most


def choose(blocks, budget_bytes):
    plan, i = ["keep"] * len(blocks), 0
    while peak_of(blocks, plan) > budget_bytes:
        plan[i % len(blocks)] = "full"
        i += 1
    return plan


# %% prepare
def prepare(model, blocks, activation_bytes):
    from itertools import product

    plans = [p for p in product(blocks[0], repeat=len(blocks)) if peak_of(blocks, p) <= activation_bytes]
    cheapest = min(plans, key=lambda p: sum(block[way][1] for block, way in zip(blocks, p, strict=True)))
    return shard(recompute(model, cheapest))
