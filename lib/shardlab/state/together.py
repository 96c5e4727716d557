"""What ranks do together before they send tensors: agree that all are there, and hear what rank 0 has to say."""

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

_calls: Counter[str] = Counter()  # calls on this rank that everybody has joined, by what was called


def everybody_calls(what: str, timeout_s: float) -> None:
    """Return when every rank of the job has called this with the same `what`, as often as this rank has.

    A collective that some ranks never call hangs the others: this finds out beforehand who is missing. It goes through
    the store that the ranks met at, not the process group, so that nothing is left in a collective's queue.

    Raises RuntimeError that names the ranks which have not come within `timeout_s`. A call that failed counts for
    nothing: the next one may succeed.
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
                f"{_ranks(here)} called {what}, {_ranks(missing)} did not within {timeout_s:g} s: "
                "call it on every rank, outside of `if rank == 0`"
            )
        time.sleep(0.002)
    _calls[what] += 1


def _ranks(ranks: list[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


def from_rank_0(make: Callable[[], Any]) -> Any:
    """What `make` returns or raises on rank 0, on every rank: if only one raised, the others would wait for it."""
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
