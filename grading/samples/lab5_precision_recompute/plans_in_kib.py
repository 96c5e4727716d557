# %% choose
def choose(blocks, budget_bytes):
    def unit(b):
        return b // 1024

    budget = budget_bytes // 1024
    beginnings = [(0, 0, [])]
    for block in blocks:
        longer = []
        for held, flops, plan in beginnings:
            if held + unit(block["keep"][0]) <= budget:
                longer += [(held + unit(b), flops + f, [*plan, way]) for way, (b, f) in block.items()]
        beginnings = []
        for candidate in sorted(longer):
            if not beginnings or candidate[1] < beginnings[-1][1]:
                beginnings.append(candidate)
    return beginnings[-1][2] if beginnings else None
