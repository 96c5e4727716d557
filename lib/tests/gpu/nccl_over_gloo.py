"""A backend with NCCL's manners on the stand-in GPU: gloo moves the data, and streams wait for it, not the host.

    launch(fn, 2, network=StandInGpus())        # each rank has a device `gpu`, and this backend for it

What is NCCL's: a communicator is made by the group's first collective, which takes its time and blocks the host. A
collective runs on the group's own stream, after what the caller's stream was given before, and reads and writes its
tensors there. With `async_op=True` it returns a Work, whose `wait()` makes the caller's stream wait; the Work keeps
the tensors until then. Without it, the collective runs on the caller's stream and returns no Work. Tensors must be
contiguous. The flight recorder's entries have NCCL's names and shapes.

Messages with tensors of the CPU go to gloo, as with the backend "cpu:gloo,cuda:nccl"; barriers and objects do, too.

Source: ProcessGroupNCCL.cpp: collective, initWork, endCoalescing, WorkNCCL::synchronizeStream, pointToPoint.
"""

import os
import pickle
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import stand_in_gpu
import stand_in_streams as streams
import torch
import torch._C._distributed_c10d as c10d
import torch.distributed as dist
from nccl_records import Records
from stand_in_memory import NAME, map_leaves, tensors_in
from torch import Tensor

_GATHERS = ("_allgather_base", "all_gather_single")
BACKEND = "stand_in_nccl"


class _Arrival:
    """A message on its way: gloo moves it in copies of the tensors, which `deliver` puts into the tensors."""

    def __init__(self, work: dist.Work, copies: list[tuple[Tensor, Tensor]], memory: list[tuple[int, int]]) -> None:
        self.work, self._memory = work, memory
        self._copies, self._lock = copies, threading.Lock()

    def writes(self, start: int, end: int) -> bool:
        return any(start < its_end and its_start < end for its_start, its_end in self._memory)

    def deliver(self) -> None:
        with self._lock:
            copies, self._copies = self._copies, []
            if copies:
                self.work.wait()
            for tensor, copy in copies:
                tensor.copy_(copy)


class _Work(dist.Work):
    def __init__(self, event: streams.Event, arrival: _Arrival, kept: list[Tensor]) -> None:
        super().__init__()
        self.event, self._arrival, self._kept = event, arrival, kept

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Make the current stream wait. The host goes on."""
        streams.current_stream().wait_event(self.event)
        self._kept = []
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return self._arrival.work.is_completed()

    def is_success(self) -> bool:
        return True

    def __del__(self) -> None:
        _dropped.extend(self._kept)


_dropped: list[Tensor] = []  # NCCL's watchdog keeps the tensors of a Work that nobody waited for until they are unused


def _interval(t: Tensor) -> tuple[int, int]:
    return t.data_ptr(), t.data_ptr() + t.nbytes


class StandInNccl(dist.ProcessGroup):
    """Process group with NCCL's manners for tensors on `gpu`, and gloo for those on the CPU."""

    def __init__(self, store: dist.Store, rank: int, n_ranks: int, timeout: timedelta) -> None:
        super().__init__(rank, n_ranks)
        gloo = dist.ProcessGroupGloo(store, rank, n_ranks, timeout)
        self._gloo = dist.ProcessGroup(store, rank, n_ranks)
        for group, kind in ((self._gloo, self.BackendType.GLOO), (self, self.BackendType.CUSTOM)):
            group._set_default_backend(kind)
            group._register_backend(torch.device("cpu"), kind, gloo)
        self._register_backend(torch.device(NAME), self.BackendType.CUSTOM, gloo)
        self._store = store
        self._stream: streams.Stream | None = None  # the communicator's, once it is made

    def get_group_store(self) -> dist.Store:
        return self._store

    def getBackendName(self) -> str:
        return BACKEND

    def _run(self, name: str, outputs, inputs, args: tuple, options: dict):
        """Run a collective. `outputs` and `inputs` are those among the arguments that it writes and reads."""
        tensors = tensors_in((outputs, inputs))
        if not any(t.device.type == NAME for t in tensors):
            return getattr(self._gloo, name)(*args, **options)
        if any(t.device.type != NAME or not t.is_contiguous() for t in tensors):
            raise ValueError(f"{name}: NCCL's tensors must be contiguous, and on the device")
        if self._stream is None:
            time.sleep(creation_s)
            self._stream = streams.Stream()
        record = records.add(self, name, outputs, inputs, args)
        wants_work = any(getattr(o, "asyncOp", False) for o in (*args, *options.values()))
        is_async = wants_work or name in ("send", "recv")
        caller = streams.current_stream()
        stream = self._stream if is_async else caller
        if is_async:
            stream.wait_stream(caller)
        self._take_what_it_needs(stream, tensors)
        arrival = self._begin(name, outputs, args, options)
        stand_in_gpu.gpu.kernel(f"nccl:{name}", tensors_in(inputs), tensors_in(outputs), stream=stream)
        if name in _GATHERS:
            stand_in_gpu.gpu.sanitizer.gathered(stream.number)
        stream.arrivals.append(arrival)
        record["work"] = arrival.work
        return _Work(stream.record_event(), arrival, tensors) if is_async else None

    def _begin(self, name: str, outputs, args: tuple, options: dict) -> _Arrival:
        memory, copies = stand_in_gpu.gpu.memory, {}

        def copy(x):
            if not isinstance(x, Tensor):
                return x
            if id(x) not in copies:
                copies[id(x)] = memory.on_host(x).clone()
            return copies[id(x)]

        work = getattr(self._gloo, name)(*map_leaves(copy, args), **map_leaves(copy, options))
        pairs = [(memory.on_host(t), copies[id(t)]) for t in tensors_in(outputs)]
        for tensor, _ in pairs:
            tensor.view(-1).view(torch.uint8).fill_(255)  # NaN, or -1
        return _Arrival(work, pairs, [_interval(t) for t in tensors_in(outputs)])

    def _take_what_it_needs(self, stream: streams.Stream, tensors: list[Tensor]) -> None:
        """Wait for earlier messages into these tensors, and for no others: ranks may wait for each other's next one."""
        for arrival in stream.arrivals:
            if any(arrival.writes(*_interval(t)) for t in tensors):
                arrival.deliver()

    def barrier(self, *args, **options):
        return self._gloo.barrier(*args, **options)


# Name of the method in torch 2.11 or 2.13: the positions of what it writes and of what it reads.
_COLLECTIVES = {
    "allreduce": (0, 0),
    "allreduce_coalesced": (0, 0),
    "reduce": (0, 0),
    "broadcast": (0, 0),
    "allgather": (0, 1),
    "_allgather_base": (0, 1),
    "all_gather_single": (0, 1),
    "allgather_into_tensor_coalesced": (0, 1),
    "all_gather_single_coalesced": (0, 1),
    "reduce_scatter": (0, 1),
    "_reduce_scatter_base": (0, 1),
    "reduce_scatter_single": (0, 1),
    "reduce_scatter_tensor_coalesced": (0, 1),
    "reduce_scatter_single_coalesced": (0, 1),
    "alltoall": (0, 1),
    "alltoall_base": (0, 1),
    "all_to_all_single": (0, 1),
    "gather": (0, 1),
    "scatter": (0, 1),
    "send": (None, 0),
    "recv": (0, None),
}


def _collective(name: str, outputs: int | None, inputs: int | None):
    def method(self, *args, **options):
        sides = [() if position is None else args[position] for position in (outputs, inputs)]
        return self._run(name, *sides, args, options)

    return method


for _name, _positions in _COLLECTIVES.items():
    setattr(StandInNccl, _name, _collective(_name, *_positions))

records = Records()
creation_s = 0.0


@dataclass(frozen=True)
class StandInGpus:
    """Network that gives each rank a stand-in GPU: `launch(network=...)`. Making a communicator takes `creation_s`."""

    creation_s: float = 0.0
    backend: str = BACKEND

    def for_ranks(self, world_size: int) -> "StandInGpus":
        return self

    def install(self) -> None:
        global creation_s
        creation_s = self.creation_s
        stand_in_gpu.install()
        os.environ["SHARDLAB_DEVICE"] = NAME  # or ranks stay on the CPU, as beside a Mac's accelerator
        c10d._dump_fr_trace = _without_shadows(c10d._dump_fr_trace)
        c10d._dump_nccl_trace = lambda *_, **__: pickle.dumps(records.dump())
        if BACKEND not in dist.Backend.backend_list:
            dist.Backend.register_backend(BACKEND, _make_group, extended_api=True, devices=["cpu", NAME])


def _without_shadows(dump: Callable[..., bytes]) -> Callable[..., bytes]:
    """Return gloo's records without those of the calls that move the data of NCCL's."""

    def dump_others(*args, **options) -> bytes:
        found = pickle.loads(dump(*args, **options))
        own = ("_begin", __file__)
        kept = [e for e in found.get("entries", []) if own not in [(f["name"], f["filename"]) for f in e["frames"]]]
        return pickle.dumps(found | {"entries": kept})

    return dump_others


def _make_group(options, _) -> StandInNccl:
    return StandInNccl(options.store, options.group_rank, options.group_size, options.timeout)
