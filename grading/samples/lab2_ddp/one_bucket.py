# %% plan_buckets
def plan_buckets(sizes_bytes, ready_s, world_size, latency_s, bandwidth_bytes_per_s):
    return [len(sizes_bytes)]
