"""Lab 2, part 2: how early any plan of buckets can end."""

from collections.abc import Iterator
from itertools import accumulate

from grading.checks.lab2_ddp.judge_bucket_plan import drawn
from shardsim.bucket_overlap import finish_time, ring_all_reduce_s


def asked(seed: int) -> Iterator[tuple]:
    return ((name, instance) for instance in drawn(seed) for name in ("earliest_finish", "finish_of_best_cap"))


def earliest_finish(instance: dict) -> float:
    """Return the earliest finish of all plans, by dynamic programming.

    The best plan for the first j gradients is the best plan for the first i, and one bucket with the rest.
    """
    sizes, ready = instance["sizes_bytes"], instance["ready_s"]
    link = instance["world_size"], instance["latency_s"], instance["bandwidth_bytes_per_s"]
    finish = [0.0]
    for j in range(1, len(sizes) + 1):
        rest = accumulate(reversed(sizes[:j]))
        ends = (max(finish[j - k], ready[j - 1]) + ring_all_reduce_s(size, *link) for k, size in enumerate(rest, 1))
        finish.append(min(ends))
    return finish[-1]


def finish_of_best_cap(instance: dict) -> float:
    """Return the earliest finish of the plans that a bucket_cap_mb makes, of all powers of two."""
    return min(finish_time(plan_for_cap(1 << i, instance), **instance) for i in range(12, 40))


def plan_for_cap(cap_bytes: int, instance: dict) -> list[int]:
    plan, filled = [0], 0
    for size in instance["sizes_bytes"]:
        if filled >= cap_bytes:
            plan, filled = [*plan, 0], 0
        plan[-1] += 1
        filled += size
    return plan


ON_RANKS = {}  # submissions are compared with PyTorch's DDP
