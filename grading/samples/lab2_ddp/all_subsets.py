# %% plan_buckets
from itertools import combinations, pairwise


def plan_buckets(sizes_bytes, ready_s, **link):
    n = len(sizes_bytes)
    best = [n]
    for cuts in (c for k in range(n) for c in combinations(range(1, n), k)):
        plan = [b - a for a, b in pairwise((0, *cuts, n))]
        try:
            if finish_time(plan, sizes_bytes, ready_s, **link) < finish_time(best, sizes_bytes, ready_s, **link):
                best = plan
        except Exception:
            continue
    return best
