# %% choose
def choose(blocks, budget_bytes):
    held = 0
    for block in blocks:
        if held + block["keep"][0] > budget_bytes:
            return None
        held += block["full"][0]
    return ["full"] * len(blocks)
