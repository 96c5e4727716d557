# %% choose
def choose(job):
    """The first H whose local steps take as long as the message, which then travels behind all of them."""
    leaders = range(0, job.network.world_size, job.network.ranks_per_node)
    message_s = job.network.seconds("all_reduce", job.drift_bytes, leaders)
    H = next((H for H in (1, 2, 4, 8, 16, 32) if H * job.step_s >= message_s), 64)
    return H, min(H - 1, math.ceil(message_s / job.step_s))
