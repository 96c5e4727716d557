"""Let torch's CUDA sanitizer see `Work.wait()`: it follows streams and events, and knows nothing of c10d's waits.

To the sanitizer, a collective reads and writes its tensors on the stream that called it. `Work.wait()` then orders the
waiting stream after the collective, by events of C++ that the sanitizer is not told of. So it takes every use of what a
collective with async_op=True has brought for a race. Here, each collective records an event on the stream that called
it, and its wait waits for that event too. NCCL orders both already, so no mistake of ours is hidden: a use without a
wait is reported as before.

Source: torch.cuda._sanitizer; ProcessGroupNCCL.cpp, WorkNCCL::synchronizeStream.
"""

import os
from functools import cache, wraps

import torch
import torch.distributed as dist

VARIABLE = "TORCH_CUDA_SANITIZER"  # torch starts its sanitizer when it is imported with this
_COLLECTIVES = ("allreduce", "broadcast", "allgather", "reduce_scatter", "alltoall_base")
_COLLECTIVES += ("_allgather_base", "_reduce_scatter_base", "all_gather_single", "reduce_scatter_single")  # old and new


@cache
def show_waits() -> None:
    """Do so on this rank from now on, if torch's sanitizer runs."""
    if not os.environ.get(VARIABLE):
        return
    device = torch.get_device_module()
    begun: dict[dist.Work, torch.Event] = {}

    def recorded(collective):
        @wraps(collective)
        def call(*args, **options):
            work = collective(*args, **options)
            begun[work] = device.current_stream().record_event()
            return work

        return call

    def wait(work, *args, _wait=dist.Work.wait, **options):
        done = _wait(work, *args, **options)
        if event := begun.pop(work, None):
            device.current_stream().wait_event(event)
        return done

    for name in (name for name in _COLLECTIVES if hasattr(dist.ProcessGroup, name)):
        setattr(dist.ProcessGroup, name, recorded(getattr(dist.ProcessGroup, name)))
    dist.Work.wait = wait
