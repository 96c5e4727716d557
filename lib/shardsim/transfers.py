"""Transfers in progress. Each is done when the network has had the time it needs.

Waiting costs no CPU: a thread that sleeps completes each transfer at its time, so that computation overlaps with
transfers as with a real network card.
"""

import atexit
import functools
import heapq
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from shardsim.cpu_streams import Moment, current_stream, reached_s

_LOG_ENTRIES = 100_000  # older collectives are forgotten


@dataclass(frozen=True)
class Collective:
    """One collective, or one send, as this rank saw it. Times are `time.monotonic()`, the same clock on all ranks."""

    kind: str  # all_reduce, all_gather, reduce_scatter, broadcast, barrier, send, ...
    bytes: int  # the unsharded size
    ranks: tuple[int, ...]  # of the group, by their numbers in the whole job
    issued_s: float  # by this rank
    ready_s: float  # by the last rank
    started_s: float  # when the last rank was ready and its links were free
    finished_s: float
    source: str = "simulated"

    @property
    def world_size(self) -> int:
        return len(self.ranks)


_log: deque[Collective] = deque(maxlen=_LOG_ENTRIES)


def collectives() -> list[Collective]:
    """Return what has finished on this rank since the last `clear()`, in that order."""
    return list(_log)


def clear() -> None:
    _log.clear()


class Transfer(dist.Work):
    """A collective in progress: what `async_op=True` returns."""

    def __init__(self, kind: str, full_bytes: int, ranks: tuple[int, ...]) -> None:
        super().__init__()
        self.kind, self.full_bytes, self.ranks = kind, full_bytes, ranks
        self.issued_s, self.ready_s = time.monotonic(), reached_s()  # when it was called; when its stream reaches it
        self.all_ready_s = self.started_s = self.due_s = 0.0
        self.moved = False  # gloo is done: `result` or `error` is set
        self.booked = threading.Event()  # gloo is done, and the network's times are known
        self.result: list[torch.Tensor] = []
        self.error: Exception | None = None
        self.delivery: dist.Work | None = None  # gloo's work, for a message
        self._done = threading.Event()
        self.triggers: deque[torch.futures.Future] = deque()  # of the futures that `get_future` returned

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Make the host wait; if a side stream is current, it waits and the host goes on. See `cpu_streams`."""
        stream = current_stream()
        if not stream.blocks and self.kind not in ("barrier", "send"):
            stream.wait_for(Moment(transfers=frozenset({self})))
            return True
        if not self._done.wait(timeout.total_seconds() or None):
            raise RuntimeError(
                f"rank {dist.get_rank()}: {self.kind} has not finished after {timeout.total_seconds()} s"
            )
        if self.error is not None:
            raise self.error
        return self.delivery is None or self.delivery.wait()

    @property
    def wait_label(self) -> str:
        """Label of `wait` in a timeline: "ordered" if the host goes on."""
        return "wait" if current_stream().blocks else "ordered"

    def wait_for_data(self) -> None:
        self.booked.wait()
        if self.error is not None:
            raise self.error

    def is_completed(self) -> bool:
        return self._done.is_set() and (self.delivery is None or self.delivery.is_completed())

    def get_future(self) -> torch.futures.Future:
        """Return a future, for DDP, which attaches its next actions to it."""
        trigger = torch.futures.Future()
        future = trigger.then(self._outcome)  # C++ sees an error if `then` raises, a value after set_exception
        self.triggers.append(trigger)
        if self._done.is_set():
            self.call_back()
        return future

    def call_back(self) -> None:
        """Complete the futures that were asked for. Their callbacks run here, and may wait for other transfers."""
        while self.triggers:
            with suppress(IndexError):  # another thread was faster
                self.triggers.pop().set_result(None)

    def _outcome(self, _) -> list[torch.Tensor]:
        if self.error is not None:
            raise self.error
        return self.result

    def finish(self) -> None:
        if self.error is None:
            times = (self.issued_s, self.all_ready_s, self.started_s, time.monotonic())
            _log.append(Collective(self.kind, self.full_bytes, self.ranks, *times))
        self._done.set()


class Receipt(dist.Work):
    """Work that `irecv` returns: gloo's, and not done before the network has delivered the message."""

    def __init__(self, work: dist.Work, due_s: Callable[[], float]) -> None:
        super().__init__()
        self._work, self._due_s = work, due_s

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        done = self._work.wait(timeout) if timeout else self._work.wait()
        time.sleep(max(0.0, self._due_s() - time.monotonic()))
        return done

    def is_completed(self) -> bool:
        return self._work.is_completed() and time.monotonic() >= self._due_s()


class _Wire:
    """Runs actions at given times; above all it completes this rank's transfers."""

    def __init__(self) -> None:
        self._to_do: list[tuple[float, int, Callable[[], None]]] = []  # a heap
        self._change, self._closing = threading.Condition(), False
        self._order = itertools.count()  # of actions that are for the same time
        self._own_threads: list[threading.Thread] = []
        self._thread = threading.Thread(target=self._run, daemon=True, name="simulated network")
        self._thread.start()
        atexit.register(self._close)

    def book(self, transfer: Transfer, all_ready_s: float, started_s: float, due_s: float) -> None:
        transfer.all_ready_s, transfer.started_s, transfer.due_s = all_ready_s, started_s, due_s
        transfer.booked.set()
        if due_s > time.monotonic():
            self.at(due_s, lambda: self._complete(transfer))
        else:  # gloo took longer than the network: complete it on gloo's own thread
            transfer.finish()
            transfer.call_back()

    def at(self, moment_s: float, do: Callable[[], None]) -> None:
        with self._change:
            heapq.heappush(self._to_do, (moment_s, next(self._order), do))
            self._change.notify()

    def _complete(self, transfer: Transfer) -> None:
        transfer.finish()
        if transfer.triggers:  # not on this thread: a hook may wait for the next transfer
            self.in_own_thread(transfer.call_back)

    def in_own_thread(self, do: Callable[[], None]) -> None:
        """Run `do` in its own thread. `_close` waits for it: a thread in C++ aborts when the interpreter ends."""
        thread = threading.Thread(target=do, daemon=True)
        with self._change:
            self._own_threads = [t for t in self._own_threads if t.is_alive()] + [thread]
            thread.start()

    def _run(self) -> None:
        while (do := self._next_due()) is not None:
            do()

    def _next_due(self) -> Callable[[], None] | None:
        """Sleep until an action's time has come and return it; return None at the end, when nothing is left."""
        with self._change:
            while self._to_do or not self._closing:
                wait_s = self._to_do[0][0] - time.monotonic() if self._to_do else None
                if self._to_do and (self._closing or wait_s <= 0):
                    return heapq.heappop(self._to_do)[2]
                self._change.wait(wait_s)
        return None

    def _close(self) -> None:
        """End the threads before the interpreter ends."""
        with self._change:
            self._closing = True
            self._change.notify()
        for thread in (self._thread, *self._own_threads):
            thread.join(timeout=5)


wire = functools.cache(_Wire)
