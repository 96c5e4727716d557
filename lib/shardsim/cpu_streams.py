"""Streams for ranks on a CPU: what is issued inside a side stream is ordered behind it, and the host goes on.

torch's FSDP hides its messages behind computation by CUDA streams. On a CPU, `torch.cpu.Stream` and its like are
stand-ins: the host waits for each message as it is issued, and nothing overlaps. While a simulated network is in use
`install` puts the ones below in their place, and torch's own order of streams and events takes effect:

    with torch.cpu.stream(side):
        dist.all_gather_single(whole, shard)        # the host goes on at once
        arrived = side.record_event()
    ...                                             # computation, while the network is at work
    torch.cpu.current_stream().wait_event(arrived)  # here the host waits until the network is through

[Note: a stream is a clock] A stream keeps the moment at which all that is queued on it will be through: when the
transfers that it waits for are due. An event is a copy of that moment. A stream that waits for an event takes the later
moment of the two, and a collective issued on a stream joins the network no earlier than its moment. Since moments only
grow, who waits for a transfer has waited for all that the stream was given before it.

[Note: the host is the compute stream] It computes what it is given at once, so that it never runs ahead of it as it
does of a GPU: waiting for an event blocks it. That is training with small kernels, bound by the host, and in forward
only what the user names is prefetched. With `run_ahead()` the compute stream has a clock, too: computation that is
slept (`slept_computation`) is queued on it, and the host goes on until it asks for a result, as it does of a busy GPU.
FSDP2 then prefetches in forward without being told, and FSDP1's rate limiter has something to limit. Computation that
is real takes no time on that clock beyond the host's own.

[Note: data] The host holds the data when gloo has moved it, often long before the transfer is due. What is queued on a
side stream behind a transfer, and reads or frees memory, waits for that: `_DataFirst` sees to operations, `_resize` to
memory that is freed by hand, and `reached_s` to collectives. On the compute stream whoever waits has the data.

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
    """When `transfers` are through and it is `clock_s` (`time.monotonic()`)."""

    clock_s: float = 0.0
    transfers: frozenset = frozenset()

    def __or__(self, other: "Moment") -> "Moment":
        transfers = self.transfers | other.transfers
        kept = frozenset(t for t in transfers if not t.is_completed() or t.error)  # an error is for who blocks
        return Moment(max(self.clock_s, other.clock_s), kept)

    def due_s(self) -> float:
        """The host waits until gloo has moved the data: only then is it known."""
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
    """`torch.cuda.Stream`'s queue as a clock. Made by `torch.cpu.Stream()` while a simulated network is in use."""

    def __init__(self, device: torch.device | None = None, priority: int = 0) -> None:
        self.moment, self.blocks = Moment(), False  # blocks: the host waits for whatever is queued on it
        _streams.add(self)

    def wait_for(self, moment: Moment) -> None:
        if self.blocks:
            moment.block()
        else:
            self.moment |= moment
        if self is _compute:
            self.moment.due_s()  # for the data

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
    """A moment of a stream."""

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
_current = threading.local()  # as CUDA's: a thread of autograd's or of gloo's computes on the compute stream


def current_stream(device: torch.device | None = None) -> Stream:
    return getattr(_current, "stream", _compute)


def reached_s() -> float:
    """When the current stream gets to what is issued now: for a collective, the earliest that it can start."""
    return current_stream().moment.due_s()


@contextmanager
def stream(stream: Stream | None) -> Iterator[None]:
    """What is issued inside is queued on `stream`."""
    before = current_stream()
    _current.stream = stream or before
    try:
        with nullcontext() if _current.stream.blocks else _DataFirst():
            yield
    finally:
        _current.stream = before


class _DataFirst(TorchDispatchMode):
    """An operation on a side stream waits for the data that the stream waits for; a view needs none."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if not func.is_view:
            current_stream().moment.due_s()
        return func(*args, **kwargs or {})


def _resize(storage: torch.UntypedStorage, size: int) -> None:
    """Memory is not taken from under a transfer, which on a GPU the caching allocator sees to."""
    if size < storage.nbytes():
        for each in list(_streams):
            each.moment.due_s()
    _torchs["resize_"](storage, size)


def synchronize(device: torch.device | None = None) -> None:
    """The host waits for every stream."""
    for each in list(_streams):
        each.synchronize()


@contextmanager
def run_ahead() -> Iterator[None]:
    """The host queues computation that is slept and goes on. See [Note: the host is the compute stream].

    Ask for the time after `torch.cpu.synchronize()`, as on a GPU. Leaving the context synchronizes.
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
        del torch.UntypedStorage.resize_  # its base class has it


def _put(functions: dict) -> None:
    for name, function in functions.items():
        setattr(torch.cpu, name, function)
