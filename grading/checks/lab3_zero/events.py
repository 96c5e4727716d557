"""Record when a rank waits for a collective.

This tells a message that overlaps backward from one that stops it.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist


@contextmanager
def watch_waits() -> Iterator[list[float]]:
    """Yield a list of the times of the first wait for each piece of work, in order, in seconds since the epoch."""
    times: list[float] = []
    seen: list[dist.Work] = []  # kept alive, so that no other work gets its id
    original = dist.Work.wait

    def wait(work, *args, **kwargs):
        if not any(work is w for w in seen):
            seen.append(work)
            times.append(time.time())
        return original(work, *args, **kwargs)

    dist.Work.wait = wait
    try:
        yield times
    finally:
        dist.Work.wait = original
