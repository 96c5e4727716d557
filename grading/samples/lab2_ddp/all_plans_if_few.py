# %% plan_buckets
from itertools import combinations


def plan_buckets(sizes_bytes, ready_s, world_size, latency_s, bandwidth_bytes_per_s):
    n = len(sizes_bytes)

    def plan_for(cap):
        plan, filled = [], cap
        for size in sizes_bytes:
            if filled >= cap:
                plan, filled = [*plan, 0], 0
            plan[-1] += 1
            filled += size
        return plan

    plans = [plan_for(2**i) for i in range(12, 40)]
    if n <= 15:
        cuts = [(0, *c, n) for k in range(n) for c in combinations(range(1, n), k)]
        plans = [[b - a for a, b in zip(c, c[1:], strict=False)] for c in cuts]
    link = (sizes_bytes, ready_s, world_size, latency_s, bandwidth_bytes_per_s)
    return min(plans, key=lambda plan: finish_time(plan, *link))
