"""Streams and events of the stand-in GPU: they tell the sanitizer who waits for whom, and hold what comes late."""

import itertools
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch

sanitizer = sweep = None  # stand_in_gpu sets them
_numbers = itertools.count(1)
_current = threading.local()  # one a thread, as in CUDA
_streams: weakref.WeakSet["Stream"] = weakref.WeakSet()  # all that there are


class Arrival(Protocol):
    """A message whose data is not in its tensors yet."""

    def deliver(self) -> None:
        """Wait for the data, and put it into the tensors. Calling it again does nothing."""


class Stream:
    """A queue of the device. `arrivals`: messages that its next work waits for."""

    def __init__(self, device: torch.device | int | None = None, priority: int = 0, number: int | None = None) -> None:
        self.number = next(_numbers) if number is None else number
        self.arrivals: list[Arrival] = []
        _streams.add(self)
        if self.number:
            sanitizer.handler._handle_stream_creation(self.number)

    device = property(lambda self: torch.device("gpu", 0))

    def take_arrivals(self) -> None:
        """Wait for the messages, before work on this stream runs."""
        arrivals, self.arrivals = self.arrivals, []
        for arrival in arrivals:
            arrival.deliver()

    def record_event(self, event: "Event | None" = None) -> "Event":
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event: "Event") -> None:
        if event.recorded:
            sweep()
            sanitizer.handler._handle_event_wait(event.number, self.number)
            self.arrivals += [a for a in event.arrivals if a not in self.arrivals]

    def wait_stream(self, stream: "Stream") -> None:
        self.wait_event(stream.record_event())

    def synchronize(self) -> None:
        sweep()
        sanitizer.handler._handle_stream_synchronization(self.number)
        self.take_arrivals()

    def query(self) -> bool:
        return not self.arrivals

    def __eq__(self, other) -> bool:
        return isinstance(other, Stream) and other.number == self.number

    def __hash__(self) -> int:
        return hash(self.number)

    def __enter__(self) -> "Stream":
        self._before = current_stream()
        _current.stream = self
        return self

    def __exit__(self, *_) -> None:
        _current.stream = self._before


class Event:
    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        self.number, self.recorded, self.arrivals = next(_numbers), False, []

    def record(self, stream: Stream | None = None) -> None:
        stream = stream or current_stream()
        self.recorded, self.arrivals = True, list(stream.arrivals)
        sweep()
        sanitizer.handler._handle_event_record(self.number, stream.number)

    def wait(self, stream: Stream | None = None) -> None:
        (stream or current_stream()).wait_event(self)

    def synchronize(self) -> None:
        if self.recorded:
            sweep()
            sanitizer.handler._handle_event_synchronization(self.number)
            for arrival in self.arrivals:
                arrival.deliver()

    def query(self) -> bool:
        return not self.arrivals


class _Default(Stream):
    def __init__(self) -> None:
        self.number, self.arrivals = 0, []
        _streams.add(self)


default = _Default()


def current_stream(device: torch.device | int | None = None) -> Stream:
    return getattr(_current, "stream", default)


@contextmanager
def stream(stream: Stream | None) -> Iterator[None]:
    """Queue what is issued inside on `stream`."""
    before = current_stream()
    _current.stream = stream or before
    try:
        yield
    finally:
        _current.stream = before


def synchronize(device: torch.device | int | None = None) -> None:
    """Make the host wait for the whole device."""
    sweep()
    sanitizer.handler._handle_device_synchronization()
    for each in list(_streams):
        each.take_arrivals()
