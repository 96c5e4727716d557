# %% choose
def choose(job):
    """The first H whose local steps take as long as the message, which then travels behind all of them."""
    leaders = range(0, job.network.world_size, job.network.ranks_per_node)
    message_s = job.network.seconds("all_reduce", job.drift_bytes, leaders)
    H = next((H for H in (1, 2, 4, 8, 16, 32) if H * job.step_s >= message_s), 64)
    late = min(H - 1, math.ceil(message_s / job.step_s))
    return H, late, seconds_of(job, H, late, message_s)


def seconds_of(job, H, late, message_s):
    """Follow this one schedule step by step."""
    w, anchor, v = torch.zeros_like(job.optimum), torch.zeros_like(job.optimum[0]), 0.0
    for step in range(1, 1025 + late):
        w = w - job.inner_lr * job.curvature * (w - job.optimum)
        if step % H == 0:
            sent = w
            d = (job.shares[:, None] * (anchor - w)).sum(0)
        if step >= H and step % H == late:
            v = job.momentum * v + d
            anchor = anchor - job.lr * (d + job.momentum * v)
            if (job.shares[:, None] * job.curvature * (anchor - job.optimum) ** 2).sum() / 2 <= job.target:
                rounds = step // H
                return (step - late) * job.step_s + (rounds - 1) * max(0, message_s - late * job.step_s) + message_s
            w = anchor + w - sent
    return math.inf
