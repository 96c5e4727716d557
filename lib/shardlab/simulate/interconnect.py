"""A slow network on a fast machine: real collectives that take the wall time which a given link would need.

The `torch.distributed` backend "simulated" moves the data over gloo, so that results are gloo's to the bit, and lets
the caller wait until the link would have been through. torch's DDP and FSDP2 run on it unchanged.

    use_link(Link.parse("1 Gb/s, 50 us"))
    dist.init_process_group("simulated")
    ...
    collectives()  # what was sent, when it started, when it finished

[Note: when a collective starts and finishes]
It starts when its last rank has arrived and this rank's link is free: a rank has one link, which carries one transfer
at a time. It finishes after the time that `Link` says, or with gloo where gloo is slower. Two parties see to that.
Gloo's threads report that the data is there (`_moved`), and the thread of `wire` completes the transfers as they fall
due. One thread for both would begin to sleep only when gloo is through, and so add gloo's time to the link's.

Not simulated: topology (each rank has one link, to an ideal switch), sharing a link between transfers, CUDA tensors.
Free of charge: gather, scatter, recv. All ranks must be on one machine, whose clock they share.
"""

import mmap
import os
import tempfile
import threading
from collections import deque
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

from shardlab.simulate.link import Link
from shardlab.simulate.wire import Collective, Transfer, clear, collectives, wire

__all__ = ["Collective", "Link", "SimulatedProcessGroup", "clear", "collectives", "use_link"]

_SLOTS = 1 << 16  # far more collectives than one group ever has under way

_link: Link | None = None


def use_link(link: Link) -> None:
    """Groups made from now on have this link; every rank must say the same."""
    global _link
    _link = link


class _Arrivals:
    """When each rank of a group issued each of its collectives: (_SLOTS, world_size) float64 in memory they all share.

    A rank writes here before it hands its data to gloo. Whoever holds the result of an all_reduce can therefore read
    every arrival, without one more message. Of a broadcast others may still be on their way; their slots hold older
    times.
    """

    def __init__(self, store: dist.Store, rank: int, world_size: int) -> None:
        self.rank, self.world_size = rank, world_size
        if rank == 0:
            fd, path = tempfile.mkstemp(prefix="shardlab-arrivals-")
            os.truncate(fd, 8 * _SLOTS * world_size)  # takes up no space before it is written
            os.close(fd)
            store.set("path", path)
        path = store.get("path").decode()
        with open(path, "r+b") as file:
            self._table = memoryview(mmap.mmap(file.fileno(), 0)).cast("d")
        if store.add("mapped", 1) == world_size:
            os.unlink(path)  # the memory lives on while a rank maps it

    def write(self, seq: int, issued_s: float) -> None:
        self._table[seq % _SLOTS * self.world_size + self.rank] = issued_s

    def read(self, seq: int) -> list[float]:
        first = seq % _SLOTS * self.world_size
        return self._table[first : first + self.world_size].tolist()

    def missing(self, seq: int) -> list[int]:
        """The ranks that have not issued it: what stands in their slot is older than their collective before."""
        now, before = self.read(seq), self.read(seq - 1)
        return [r for r in range(self.world_size) if now[r] <= before[r]]


class SimulatedProcessGroup(dist.ProcessGroup):
    """gloo's collectives, each followed by the wait for the link. `_CHARGED` says which."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        if _link is None:
            raise RuntimeError(f"rank {rank}: over which link? First call use_link(Link.parse('1 Gb/s, 50 us'))")
        gloo = dist.ProcessGroupGloo(store, rank, size, timeout)
        # Calls go to gloo through a plain group and so through torch's dispatcher, where CommDebugMode sees them. Gloo
        # is registered with this group too: it takes the group's name from it, for the flight recorder, and does the
        # rest.
        self._gloo = dist.ProcessGroup(store, rank, size)
        for group, kind in ((self._gloo, self.BackendType.GLOO), (self, self.BackendType.CUSTOM)):
            group._set_default_backend(kind)
            group._register_backend(torch.device("cpu"), kind, gloo)
        self._arrivals = _Arrivals(dist.PrefixStore("arrivals", store), rank, size)
        self._link = _link
        self._issued = 0
        self._lock = threading.Lock()
        self._pending: deque[tuple[int, Transfer]] = deque()  # in order of issue, the same on every rank

    def getBackendName(self) -> str:
        return "simulated"

    def send(self, tensors, dst, tag):
        """Gloo gets the message at the moment when the link has delivered it, so that recv can be gloo's own."""
        message = Transfer("send", _bytes(tensors), 2, self._link, deliver=lambda: self._gloo.send(tensors, dst, tag))
        wire().book(message, ready_s=message.issued_s)
        return message

    def _charge(self, kind: str, full_bytes: int, collective: Callable[[], dist.Work]) -> Transfer:
        transfer, seq = Transfer(kind, full_bytes, self.size(), self._link), self._issued
        self._arrivals.write(seq, transfer.issued_s)
        work = collective()
        self._issued += 1
        with self._lock:
            self._pending.append((seq, transfer))
        _future(work).add_done_callback(lambda future: self._moved(seq, transfer, future))
        return transfer

    def _moved(self, seq: int, transfer: Transfer, future: torch.futures.Future) -> None:
        """On a thread of gloo's: the data is there. Book the link for what is now next in the group's order."""
        try:
            transfer.result = future.value()
        except Exception as error:
            transfer.error = self._explain(seq, transfer, error)
        transfer.moved = True
        with self._lock:
            while self._pending and self._pending[0][1].moved:
                seq, transfer = self._pending.popleft()
                wire().book(transfer, ready_s=max(self._arrivals.read(seq)))

    def _explain(self, seq: int, transfer: Transfer, error: Exception) -> RuntimeError:
        missing = self._arrivals.missing(seq)
        why = f"; still missing: rank {', '.join(map(str, missing))}" if missing else ""
        what = f"{transfer.kind} #{seq} of {transfer.full_bytes} bytes"
        return RuntimeError(f"rank {self.rank()} of group {self.group_name!r}: {what} failed{why}: {error}")


# Method, as torch 2.11 or 2.13 calls it: kind, and which argument holds the tensors of unsharded size.
_CHARGED = {
    "allreduce": ("all_reduce", 0),
    "allreduce_coalesced": ("all_reduce", 0),
    "reduce": ("reduce", 0),
    "broadcast": ("broadcast", 0),
    "allgather": ("all_gather", 0),
    "_allgather_base": ("all_gather", 0),
    "all_gather_single": ("all_gather", 0),
    "allgather_into_tensor_coalesced": ("all_gather", 0),
    "all_gather_single_coalesced": ("all_gather", 0),
    "reduce_scatter": ("reduce_scatter", 1),
    "_reduce_scatter_base": ("reduce_scatter", 1),
    "reduce_scatter_single": ("reduce_scatter", 1),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter", 1),
    "reduce_scatter_single_coalesced": ("reduce_scatter", 1),
    "alltoall_base": ("all_to_all", 1),
    "all_to_all_single": ("all_to_all", 1),
    "barrier": ("barrier", None),
}


def _bytes(tensors) -> int:
    return tensors.nbytes if isinstance(tensors, torch.Tensor) else sum(map(_bytes, tensors))


def _future(work: dist.Work) -> torch.futures.Future:
    """gloo's, where it has one. Of a reduce_scatter of a list it has none: a thread waits for that."""
    try:
        return work.get_future()
    except RuntimeError:
        trigger = torch.futures.Future()
        future = trigger.then(lambda _: [] if work.wait() else None)
        threading.Thread(target=trigger.set_result, args=(None,), daemon=True).start()
        return future


def _charged(name: str, kind: str, full: int | None):
    def method(self, *args, **options) -> Transfer:
        full_bytes = 0 if full is None else _bytes(args[full])
        return self._charge(kind, full_bytes, lambda: getattr(self._gloo, name)(*args, **options))

    return method


for _name, (_kind, _full) in _CHARGED.items():
    setattr(SimulatedProcessGroup, _name, _charged(_name, _kind, _full))
dist.Backend.register_backend("simulated", SimulatedProcessGroup, devices=["cpu"])
