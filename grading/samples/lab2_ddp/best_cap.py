# %% plan_buckets
def plan_buckets(sizes_bytes, ready_s, world_size, latency_s, bandwidth_bytes_per_s):
    def plan_for(cap):
        plan, filled = [], cap
        for size in sizes_bytes:
            if filled >= cap:
                plan, filled = [*plan, 0], 0
            plan[-1] += 1
            filled += size
        return plan

    link = (sizes_bytes, ready_s, world_size, latency_s, bandwidth_bytes_per_s)
    return min((plan_for(2**i) for i in range(12, 40)), key=lambda plan: finish_time(plan, *link))
