"""Lab 11: how long every allowed schedule takes to reach the target of a drawn job."""

from collections.abc import Iterator

import torch

from grading.checks.lab11_slow_link.drawn_jobs import H_ALLOWED, MOST_STEPS, Job, draw, job_of, loss_of


def asked(seed: int) -> Iterator[tuple]:
    return (("times", facts) for facts in draw(seed))


def times(facts: dict) -> dict[str, float | None]:
    """Return the seconds until the common weights reach the target, by "H late"; None where they never do."""
    job = job_of(facts)
    return {f"{H} {late}": _seconds(job, H, late) for H in H_ALLOWED for late in range(H)}


def _seconds(job: Job, H: int, late: int) -> float | None:
    n_rounds = rounds_needed(job, H, late)
    message_s = job.network.seconds("all_reduce", job.drift_bytes, one_of_each_site(job))
    waits_s = max(0.0, message_s - late * job.step_s)
    return n_rounds and n_rounds * H * job.step_s + (n_rounds - 1) * waits_s + message_s


def one_of_each_site(job: Job) -> range:
    return range(0, job.network.world_size, job.network.ranks_per_node)


def rounds_needed(job: Job, H: int, late: int) -> int | None:
    """Return the number of the first round whose anchor has the target's loss; None if no allowed step reaches it."""
    still_off = 1 - job.inner_lr * job.curvature  # after a step, of what each weight is off at its site
    anchor, velocity = torch.zeros(job.curvature.shape[1], dtype=torch.float64), 0.0
    w = torch.zeros_like(job.curvature)
    for n in range(1, MOST_STEPS // H + 1):
        alone = H if n == 1 else H - late  # `late` of a round's steps were taken before its anchor came
        sent = job.optimum + still_off**alone * (w - job.optimum)
        drift = job.shares @ (anchor - sent)
        velocity = job.momentum * velocity + drift
        anchor = anchor - job.lr * (drift + job.momentum * velocity)
        if (loss := loss_of(job, anchor)) <= job.target:
            return n
        if not loss < 1e6:
            return None
        meanwhile = job.optimum + still_off**late * (sent - job.optimum) - sent
        w = anchor + meanwhile
    return None


ON_RANKS = {}  # submissions are compared with a training in one process
HIDDEN = ("still_off", "rounds_needed")
