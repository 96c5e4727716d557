"""When a rank waits for a collective: what tells a message that runs beside backward from one that stops it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist


@contextmanager
def watch_waits() -> Iterator[list[float]]:
    """When the block began to wait for a piece of work for the first time, in seconds since the epoch, in order."""
    times: list[float] = []
    seen: list[dist.Work] = []  # kept, so that no other gets its id
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
