"""Agreement between ranks before they send tensors: check that all are there, and pass on rank 0's results."""

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from shardlab.launch.hang_report import named

_calls: Counter[str] = Counter()  # by `what`: calls of this rank that all ranks have joined


def everybody_calls(what: str, timeout_s: float) -> None:
    """Return when every rank of the job has called this with the same `what`, as often as this rank has.

    If some ranks never call a collective, the others hang; this finds the missing ranks beforehand. It uses the store
    at which the ranks met, not the process group, so that nothing is left in a collective's queue.

    Raises RuntimeError that names the ranks which have not called within `timeout_s`. A failed call does not count: the
    next one may succeed.
    """
    if world_size() == 1:
        return
    store = dist.group.WORLD.get_group_store()
    keys = [f"everybody/{what}/{_calls[what]}/{r}" for r in range(world_size())]
    store.set(keys[rank()], "here")
    deadline = time.monotonic() + timeout_s
    while missing := [r for r, key in enumerate(keys) if not store.check([key])]:
        if time.monotonic() > deadline:
            store.delete_key(keys[rank()])
            here = [r for r in range(len(keys)) if r not in missing]
            raise RuntimeError(
                f"{named(here)} called {what}, {named(missing)} did not within {timeout_s:g} s: "
                "call it on every rank, outside of `if rank == 0`"
            )
        time.sleep(0.002)
    _calls[what] += 1


def from_rank_0(make: Callable[[], Any]) -> Any:
    """Return or raise on every rank what `make` does on rank 0; if only rank 0 raised, the others would wait for it."""
    box: list = [None, None]
    if rank() == 0:
        try:
            box[0] = make()
        except Exception as error:
            box[1] = error
    if world_size() > 1:
        dist.broadcast_object_list(box, 0)
    if box[1] is not None:
        raise box[1]
    return box[0]


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1
