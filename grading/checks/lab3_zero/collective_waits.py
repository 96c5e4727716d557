"""Record when a rank waits for each of its collectives.

This tells a message that overlaps backward from one that stops it. On NCCL no wait stops the host: it stops the stream,
on which the kernels of the next gradients are queued after it. The order of the calls is the same as on the stream.

A synchronous collective of NCCL makes its caller's stream wait at once and returns no work
(ProcessGroupNCCL::collective: `return asyncOp ? work : nullptr`), so it counts as waited for at once.
"""

import math
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from unittest.mock import patch

import torch
import torch.distributed as dist

_WITH_WORK = ("allreduce", "allreduce_coalesced", "broadcast", "reduce", "barrier", "gather", "scatter")
_WITH_WORK += ("allgather", "_allgather_base", "all_gather_single", "allgather_into_tensor_coalesced")
_WITH_WORK += ("reduce_scatter", "_reduce_scatter_base", "reduce_scatter_single", "reduce_scatter_tensor_coalesced")
_WITH_WORK += ("alltoall", "alltoall_base", "all_to_all_single")
# Each may hold up backward until the message is there: to ask for the work's state, in a loop; its future; a stream
_WAITS_OF_WORK = ("wait", "synchronize", "is_completed", "get_future", "get_future_result", "block_current_stream")
_WAITS_OF_DEVICES = ((torch.cuda, "synchronize"), (torch.cuda.Event, "wait"), (torch.cuda.Event, "synchronize"))
_WAITS_OF_DEVICES += ((torch.cuda.Stream, "synchronize"),)
_WAITS_OF_STREAMS = ("wait_stream", "wait_event")


@dataclass
class Call:
    """One call of a process group, with times in seconds since the epoch."""

    begin: float
    end: float
    work: dist.Work | None  # kept alive, so that no other work gets its id
    waited: float = math.inf


@dataclass
class Waits:
    calls: list[Call] = field(default_factory=list)
    everything: list[float] = field(default_factory=list)  # times of waits for all that a device has to do

    def of(self, issued_s: float) -> float:
        """Return when the collective that was issued at this moment was first waited for; infinity if never."""
        waited = next((call.waited for call in self.calls if call.begin <= issued_s <= call.end), math.inf)
        return min(waited, next((moment for moment in self.everything if issued_s < moment), math.inf))


@contextmanager
def watch_waits() -> Iterator[Waits]:
    """Yield a record that fills with the calls of collectives, and with the times of waits."""
    waits = Waits()
    computing = torch.cuda.current_stream() if torch.cuda.is_available() else None

    def wait(original):
        def wait(work, *args, **kwargs):
            known = next((call for call in reversed(waits.calls) if call.work is work), None)
            if known is None:
                waits.everything.append(time.time())  # which messages this work has is not known
            else:
                known.waited = min(known.waited, time.time())
            return original(work, *args, **kwargs)

        return wait

    def call(original):
        def called(*args, **kwargs):
            begin = time.time()
            work = original(*args, **kwargs)
            waits.calls.append(Call(begin, time.time(), work, math.inf if work is not None else begin))
            return work

        called.__name__ = original.__name__  # by the name, pybind sees that an override calls its base method
        return called

    def wait_for_all(original):
        def wait_for_all(*args, **kwargs):
            waits.everything.append(time.time())
            return original(*args, **kwargs)

        return wait_for_all

    def wait_on_a_stream(original):
        def wait_on_a_stream(stream, *args, **kwargs):
            if computing is None or stream == computing:  # another stream holds up no gradient
                waits.everything.append(time.time())
            return original(stream, *args, **kwargs)

        return wait_on_a_stream

    with ExitStack() as stack:

        def replace(owner, name: str, by) -> None:
            if hasattr(owner, name):
                stack.enter_context(patch.object(owner, name, by(getattr(owner, name))))

        for name in _WAITS_OF_WORK:
            replace(dist.Work, name, wait)
        for owner, name in _WAITS_OF_DEVICES:
            replace(owner, name, wait_for_all)
        for name in _WAITS_OF_STREAMS:
            replace(torch.cuda.Stream, name, wait_on_a_stream)
        for name in (name for name in _WITH_WORK if name in vars(dist.ProcessGroup)):
            replace(dist.ProcessGroup, name, call)
        yield waits
