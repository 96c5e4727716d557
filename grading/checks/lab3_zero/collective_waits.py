"""Record when a rank waits for a collective.

This tells a message that overlaps backward from one that stops it. On NCCL no wait stops the host: it stops the stream,
on which the kernels of the next gradients are queued after it. The order of the calls is the same as on the stream.

A synchronous collective of NCCL makes its caller's stream wait at once and returns no work
(ProcessGroupNCCL::collective: `return asyncOp ? work : nullptr`), so it counts as waited for at once.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple
from unittest.mock import patch

import torch
import torch.distributed as dist

_WITH_WORK = ("allreduce", "allreduce_coalesced", "broadcast", "reduce", "barrier", "gather", "scatter")
_WITH_WORK += ("allgather", "_allgather_base", "all_gather_single", "allgather_into_tensor_coalesced")
_WITH_WORK += ("reduce_scatter", "_reduce_scatter_base", "reduce_scatter_single", "reduce_scatter_tensor_coalesced")
_WITH_WORK += ("alltoall", "alltoall_base", "all_to_all_single")


class Waits(NamedTuple):
    """Times in seconds since the epoch, in order."""

    works: list[float]  # of the first wait for each piece of work
    devices: list[float]  # of the waits for all that a device has to do


@contextmanager
def watch_waits() -> Iterator[Waits]:
    """Yield lists that fill with the times of waits."""
    waits = Waits([], [])
    seen: list[dist.Work] = []  # kept alive, so that no other work gets its id

    def wait(original):
        def wait(work, *args, **kwargs):
            if not any(work is w for w in seen):
                seen.append(work)
                waits.works.append(time.time())
            return original(work, *args, **kwargs)

        return wait

    def call(original):
        def called(*args, **kwargs):
            work = original(*args, **kwargs)
            if work is None:
                waits.works.append(time.time())
            return work

        called.__name__ = original.__name__  # by the name, pybind sees that an override calls its base method
        return called

    def synchronize(original):
        def synchronize(*args, **kwargs):
            waits.devices.append(time.time())
            return original(*args, **kwargs)

        return synchronize

    with ExitStack() as stack:
        stack.enter_context(patch.object(dist.Work, "wait", wait(dist.Work.wait)))
        stack.enter_context(patch.object(torch.cuda, "synchronize", synchronize(torch.cuda.synchronize)))
        for name in _WITH_WORK:
            if name in vars(dist.ProcessGroup):
                replacement = call(getattr(dist.ProcessGroup, name))
                stack.enter_context(patch.object(dist.ProcessGroup, name, replacement))
        yield waits
