"""A rank's one link at work: transfers queue up for it, and each is through when the link has had the time it needs.

Waiting costs no CPU: a thread that sleeps completes the transfers as they fall due, so that computation overlaps with
them as it does with a network card at work.
"""

import atexit
import functools
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from queue import SimpleQueue

import torch
import torch.distributed as dist

from shardlab.simulate.link import Link

_LOG_ENTRIES = 100_000  # older collectives are forgotten


@dataclass(frozen=True)
class Collective:
    """One collective, or one send, as this rank saw it. Times are `time.monotonic()`, the same clock on all ranks."""

    kind: str  # all_reduce, all_gather, reduce_scatter, broadcast, barrier, send, ...
    bytes: int  # the unsharded size
    world_size: int
    issued_s: float  # by this rank
    started_s: float  # the last rank had arrived and the link was free
    finished_s: float
    source: str = "simulated"


_log: deque[Collective] = deque(maxlen=_LOG_ENTRIES)


def collectives() -> list[Collective]:
    """What has finished on this rank since the last `clear()`, in that order."""
    return list(_log)


def clear() -> None:
    _log.clear()


class Transfer(dist.Work):
    """A collective under way: what `async_op=True` returns."""

    def __init__(
        self, kind: str, full_bytes: int, world_size: int, link: Link, deliver: Callable[[], dist.Work] | None = None
    ) -> None:
        super().__init__()
        self.kind, self.full_bytes, self.world_size = kind, full_bytes, world_size
        self.link_s = getattr(link, f"{kind}_s")(full_bytes, world_size)
        self.issued_s, self.started_s, self.due_s = time.monotonic(), 0.0, 0.0
        self.moved = False  # gloo is through with it: `result` or `error` is set
        self.result: list[torch.Tensor] = []
        self.error: Exception | None = None
        self._deliver, self._delivery = deliver, None  # of a message: see `send`
        self._done = threading.Event()

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        if not self._done.wait(timeout.total_seconds() or None):
            raise RuntimeError(f"rank {dist.get_rank()}: {self.kind} is not through after {timeout.total_seconds()} s")
        if self.error is not None:
            raise self.error
        return self._delivery is None or self._delivery.wait()

    def is_completed(self) -> bool:
        return self._done.is_set() and (self._delivery is None or self._delivery.is_completed())

    def get_future(self) -> torch.futures.Future:
        """For DDP. Completed by a thread of its own, since what hangs on it (a hook) may wait for the next transfer."""
        trigger = torch.futures.Future()
        future = trigger.then(self._outcome)  # C++ takes a `then` that raised for an error, a set_exception for a value
        threading.Thread(target=lambda: trigger.set_result(self._done.wait()), daemon=True).start()
        return future

    def _outcome(self, _) -> list[torch.Tensor]:
        if self.error is not None:
            raise self.error
        return self.result

    def finish(self) -> None:
        try:
            self._delivery = self._deliver and self._deliver()
        except RuntimeError as error:
            self.error = error
        if self.error is None:
            times = (self.issued_s, self.started_s, time.monotonic())
            _log.append(Collective(self.kind, self.full_bytes, self.world_size, *times))
        self._done.set()


class _Wire:
    """This rank's one link: it carries transfers one after the other, and completes each when it is due."""

    def __init__(self) -> None:
        self.free_s = 0.0  # when everything booked so far will be through
        self._lock, self._booked, self._closing = threading.Lock(), SimpleQueue(), threading.Event()
        self._thread = threading.Thread(target=self._finish_on_time, daemon=True, name="simulated link")
        self._thread.start()
        atexit.register(self._close)

    def book(self, transfer: Transfer, ready_s: float) -> None:
        with self._lock:  # over the put as well: transfers queue up in the order in which they are due
            transfer.started_s = max(ready_s, self.free_s)
            self.free_s = transfer.due_s = transfer.started_s + transfer.link_s
            self._booked.put(transfer)

    def _finish_on_time(self) -> None:
        while (transfer := self._booked.get()) is not None:
            self._closing.wait(max(0.0, transfer.due_s - time.monotonic()))
            transfer.finish()

    def _close(self) -> None:
        """End the thread before the interpreter ends under it."""
        self._closing.set()
        self._booked.put(None)
        self._thread.join(timeout=5)


wire = functools.cache(_Wire)
