"""Streams for ranks on a CPU: work issued inside a side stream is ordered behind it, and the host goes on.

torch's FSDP overlaps its messages with computation by CUDA streams. On a CPU, `torch.cpu.Stream` and the like are
stand-ins: the host waits for each message when it is issued, and nothing overlaps. While a simulated network is in use,
`install` replaces them by the ones below, and torch's own order of streams and events takes effect:

    with torch.cpu.stream(side):
        dist.all_gather_single(whole, shard)        # the host goes on at once
        arrived = side.record_event()
    ...                                             # computation, while the network is at work
    torch.cpu.current_stream().wait_event(arrived)  # here the host waits until the network is done

[Note: a stream is a clock] A stream keeps the moment at which all work queued on it will be done: when the network ends
the transfers that the stream waits for. An event is a copy of that moment. A stream that waits for an event takes the
later of the two moments. A collective issued on a stream joins the network no earlier than the stream's moment. Since
moments only grow, waiting for a transfer includes waiting for everything that the stream was given before it.

[Note: the host is the compute stream] The host computes its work at once, so it never runs ahead of the compute stream
as it does on a GPU: waiting for an event blocks the host. That is like training with small kernels, bound by the host,
and in forward only the units that the user names are prefetched. With `run_ahead()` the compute stream has a clock too:
slept computation (`slept_computation`) is queued on it, and the host goes on until it asks for a result, as with a busy
GPU. FSDP2 then prefetches in forward without being told, and FSDP1's rate limiter has something to limit. Real
computation takes no time on that clock beyond the host's own.

[Note: data] The host has the data when gloo has moved it, often long before the network ends the transfer. Work that is
queued on a side stream behind a transfer, and reads or frees memory, waits for the data: `_DataFirst` makes operations
wait, `_resize` memory that is freed by hand, and `reached_s` collectives. On the compute stream, a wait that returns
implies that the data is there.

Source: CUDA C++ Programming Guide, section on asynchronous concurrent execution; torch.cuda.streams; torch.cpu.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from weakref import WeakSet

import torch
from torch.utils._python_dispatch import TorchDispatchMode


@dataclass(frozen=True)
class Moment:
    """The moment when all `transfers` are done and the clock (`time.monotonic()`) shows `clock_s`."""

    clock_s: float = 0.0
    transfers: frozenset = frozenset()

    def __or__(self, other: "Moment") -> "Moment":
        transfers = self.transfers | other.transfers
        kept = frozenset(t for t in transfers if not t.is_completed() or t.error)  # errors: for `block`
        return Moment(max(self.clock_s, other.clock_s), kept)

    def due_s(self) -> float:
        """Return the time of the moment. The host waits until gloo has moved the data: only then is the time known."""
        for transfer in self.transfers:
            transfer.wait_for_data()
        return max(self.clock_s, *(t.due_s for t in self.transfers), time.monotonic())

    def passed(self) -> bool:
        return time.monotonic() >= self.clock_s and all(t.is_completed() for t in self.transfers)

    def block(self) -> None:
        with stream(_host):
            for transfer in self.transfers:
                transfer.wait()
        if (seconds := self.clock_s - time.monotonic()) > 0:
            time.sleep(seconds)


class Stream:
    """A queue kept as a clock. `torch.cpu.Stream()` makes one while a simulated network is in use."""

    def __init__(self, device: torch.device | None = None, priority: int = 0) -> None:
        self.moment, self.blocks = Moment(), False  # blocks: the host waits for whatever is queued on it
        _streams.add(self)

    def wait_for(self, moment: Moment) -> None:
        if self.blocks:
            moment.block()
        else:
            self.moment |= moment
        if self is _compute:
            self.moment.due_s()  # wait for the data

    def wait_event(self, event: "Event") -> None:
        self.wait_for(event.moment)

    def wait_stream(self, stream: "Stream") -> None:
        self.wait_for(stream.moment)

    def record_event(self, event: "Event | None" = None) -> "Event":
        event = event or Event()
        event.record(self)
        return event

    def query(self) -> bool:
        return self.moment.passed()

    def synchronize(self) -> None:
        self.moment.block()


class Event:
    """Copy of a stream's moment."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False) -> None:
        self.moment = Moment()

    def record(self, stream: Stream | None = None) -> None:
        self.moment = (stream or current_stream()).moment

    def wait(self, stream: Stream | None = None) -> None:
        (stream or current_stream()).wait_event(self)

    def query(self) -> bool:
        return self.moment.passed()

    def synchronize(self) -> None:
        self.moment.block()


_streams: WeakSet[Stream] = WeakSet()
_host, _compute = Stream(), Stream()
_host.blocks = _compute.blocks = True
_current = threading.local()  # one a thread, as in CUDA: others start on the compute stream


def current_stream(device: torch.device | None = None) -> Stream:
    return getattr(_current, "stream", _compute)


def reached_s() -> float:
    """Return when the current stream reaches what is issued now: for a collective, the earliest that it can start."""
    return current_stream().moment.due_s()


@contextmanager
def stream(stream: Stream | None) -> Iterator[None]:
    """Queue what is issued inside on `stream`."""
    before = current_stream()
    _current.stream = stream or before
    try:
        with nullcontext() if _current.stream.blocks else _DataFirst():
            yield
    finally:
        _current.stream = before


class _DataFirst(TorchDispatchMode):
    """Makes an operation on a side stream wait for the data that the stream waits for; a view needs none."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if not func.is_view:
            current_stream().moment.due_s()
        return func(*args, **kwargs or {})


def _resize(storage: torch.UntypedStorage, size: int) -> None:
    """Wait for all streams' data before memory is freed, as the caching allocator does on a GPU."""
    if size < storage.nbytes():
        for each in list(_streams):
            each.moment.due_s()
    _torchs["resize_"](storage, size)


def synchronize(device: torch.device | None = None) -> None:
    """Make the host wait for every stream."""
    for each in list(_streams):
        each.synchronize()


@contextmanager
def run_ahead() -> Iterator[None]:
    """Let the host queue slept computation and go on. See [Note: the host is the compute stream].

    Read the time after `torch.cpu.synchronize()`, as on a GPU. Leaving the context synchronizes.
    """
    _compute.blocks = False
    try:
        yield
        synchronize()
    finally:
        _compute.blocks, _compute.moment = True, Moment()


# ---------------------------------------------------------------------------------------------------------- installing

_STAND_INS = {
    "Stream": Stream,
    "Event": Event,
    "stream": stream,
    "StreamContext": stream,
    "current_stream": current_stream,
    "synchronize": synchronize,
}
_torchs: dict = {"resize_": torch.UntypedStorage.resize_}
_users = 0


def install() -> None:
    """Replace the stand-ins of `torch.cpu` until `uninstall` has been called as often."""
    global _users
    _users += 1
    if _users == 1:
        _torchs.update({name: getattr(torch.cpu, name) for name in _STAND_INS})
        _put(_STAND_INS)
        torch.UntypedStorage.resize_ = _resize


def uninstall() -> None:
    global _users
    _users -= 1
    if _users == 0:
        _put({name: _torchs[name] for name in _STAND_INS})
        del torch.UntypedStorage.resize_  # the base class has the original


def _put(functions: dict) -> None:
    for name, function in functions.items():
        setattr(torch.cpu, name, function)
