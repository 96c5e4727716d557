"""A slow network on a fast machine: real collectives that take as long as they would on a given network.

The `torch.distributed` backend "simulated" moves the data over gloo, so results are gloo's to the bit. It makes the
caller wait until the network would have finished. torch's DDP and FSDP run on it unchanged, and so do ours.

    use_network(Network.parse("2x2 nodes, 1 GB/s inside, 100 MB/s between", world_size=4))
    dist.init_process_group("simulated")
    ...
    collectives()  # what was sent, when it started, when it finished

[Note: when a collective starts and finishes]
A collective starts when its last rank has arrived and all links that it uses are free. A link carries one transfer at a
time, in the order in which they are ready. The collective finishes after the time that `Network` gives, or with gloo if
gloo is slower. Two kinds of threads do this. Gloo's threads report that the data is there (`moved`) and book the time
in `shared_state`. The thread of `transfers` completes each transfer at its time. One thread for both would begin to
sleep only when gloo is done, and so add gloo's time to the network's.

Not simulated: CUDA tensors, and transfers that share a link's bandwidth instead of taking turns. Not charged: receiving
a message that has a tag, or comes from any source. All ranks must be on one machine, whose clock and memory they share.
"""

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

from shardsim import cpu_streams
from shardsim.network import Network
from shardsim.shared_state import Clock, LinkSchedule, Mail
from shardsim.transfers import Collective, Receipt, Transfer, clear, collectives, wire

__all__ = ["Collective", "Network", "SimulatedProcessGroup", "clear", "collectives", "use_network"]

_LOOK_AGAIN_S = 1e-3

_network: Network | None = None
_schedule: LinkSchedule | None = None  # of all groups made since `use_network`
_n_networks = 0


def use_network(network: Network) -> None:
    """Use this network for all groups made from now on; every rank must pass the same one."""
    global _network, _schedule, _n_networks
    _network, _schedule, _n_networks = network, None, _n_networks + 1


class SimulatedProcessGroup(dist.ProcessGroup):
    """Process group of gloo's collectives, each followed by the wait for the network. `_CHARGED` lists them.

    `ranks` are the members' numbers in the whole job, which tell where in the network they are.
    """

    def __init__(self, store: dist.Store, rank: int, ranks: tuple[int, ...], timeout: timedelta, name: str) -> None:
        super().__init__(rank, len(ranks))  # type: ignore[call-arg]
        gloo = dist.ProcessGroupGloo(store, rank, len(ranks), timeout)
        # Calls go to gloo through a plain group and so through torch's dispatcher, where CommDebugMode sees them. Gloo
        # is registered with this group too: it takes the group's name from here, for the flight recorder, and runs the
        # calls that are not charged.
        self._gloo = dist.ProcessGroup(store, rank, len(ranks))
        for group, kind in ((self._gloo, self.BackendType.GLOO), (self, self.BackendType.CUSTOM)):
            group._set_default_backend(kind)
            group._register_backend(torch.device("cpu"), kind, gloo)
        self._ranks, self._schedule = ranks, _shared_link_schedule(store, max(ranks) + 1)
        self._in_order = _InOrder(Clock(dist.PrefixStore("clock", store), name, ranks, self._schedule), rank)
        self._mail = Mail(dist.PrefixStore("mail", store), len(ranks))
        self._sent, self._received = Counter(), Counter()  # messages, by peer and tag: gloo keeps their order
        self._store = store
        cpu_streams.install()
        self._open = True

    def shutdown(self) -> None:
        if self._open:
            self._open = False
            cpu_streams.uninstall()
        super().shutdown()

    def getBackendName(self) -> str:
        return "simulated"

    def get_group_store(self) -> dist.Store:
        return self._store  # the base class knows only a store that its own constructor got

    def send(self, tensors, dst, tag):
        ranks = (self._ranks[self.rank()], self._ranks[dst])
        message, number = Transfer("send", _bytes(tensors), ranks), self._sent[dst, tag]
        self._sent[dst, tag] += 1
        with self._schedule.locked():
            times = self._schedule.take("send", message.full_bytes, ranks, message.ready_s)
        if tag == 0:
            self._mail.post(self.rank(), dst, number, due_s=times[-1])
        message.delivery = self._gloo.send(tensors, dst, tag)
        wire().book(message, *times)
        return message

    def recv(self, tensors, src, tag):
        work, number = self._gloo.recv(tensors, src, tag), self._received[src, tag]
        self._received[src, tag] += 1
        return Receipt(work, lambda: self._mail.due_s(src, self.rank(), number)) if tag == 0 else work

    def _charge(self, kind: str, full_bytes: int, collective: Callable[[], dist.Work]) -> Transfer:
        transfer, in_order = Transfer(kind, full_bytes, self._ranks), self._in_order
        in_order.arrive(transfer)
        work = collective()
        seq = in_order.put(transfer)
        _future(work).add_done_callback(lambda future: in_order.moved(seq, transfer, future))
        return transfer


class _InOrder:
    """A group's collectives in progress, booked in the order of their issue, which is the same on every rank.

    Gloo's threads call it, so it holds no reference to gloo: a group destroyed by its own thread ends the process.
    """

    def __init__(self, clock: Clock, place: int) -> None:
        self._clock, self._place = clock, place
        self._issued = 0
        self._lock = threading.Lock()
        self._pending: deque[tuple[int, Transfer]] = deque()

    def arrive(self, transfer: Transfer) -> None:
        """Record this rank's arrival, before gloo gets the data: any rank that has the result then finds this time."""
        self._clock.arrive(self._issued, self._place, transfer.ready_s)

    def put(self, transfer: Transfer) -> int:
        with self._lock:
            self._pending.append((self._issued, transfer))
            self._issued += 1
            return self._issued - 1

    def moved(self, seq: int, transfer: Transfer, future: torch.futures.Future) -> None:
        """Note that gloo has moved the data or failed, and book what is next."""
        try:
            transfer.result = future.value()
        except Exception as error:
            transfer.error = self._explain(seq, transfer, error)
        transfer.moved = True
        self._book()

    def _book(self) -> None:
        """Book what is next. After a broadcast or reduce a rank may be ahead of others: then look again later."""
        booked = []
        with self._lock:
            while self._pending and self._pending[0][1].moved:
                seq, transfer = self._pending[0]
                if transfer.error is None and self._clock.missing(seq):
                    wire().at(time.monotonic() + _LOOK_AGAIN_S, self._book)
                    break
                self._pending.popleft()
                booked.append((transfer, self._clock.book(seq, transfer.kind, transfer.full_bytes)))
        for transfer, times in booked:
            wire().book(transfer, *times)

    def _explain(self, seq: int, transfer: Transfer, error: Exception) -> RuntimeError:
        missing = self._clock.missing(seq)
        why = f"; still missing: rank {', '.join(map(str, missing))}" if missing else ""
        what = f"{transfer.kind} #{seq} of {transfer.full_bytes} bytes"
        whose = f"rank {self._clock.ranks[self._place]} of group {self._clock.name!r}"
        return RuntimeError(f"{whose}: {what} failed{why}: {error}")


def _make_group(options, _) -> SimulatedProcessGroup:
    """Make a group for torch; the default group's list of ranks is empty."""
    ranks = tuple(options.global_ranks_in_group) or tuple(range(options.group_size))
    return SimulatedProcessGroup(options.store, options.group_rank, ranks, options.timeout, options.group_id)


def _shared_link_schedule(store: dist.Store, at_least: int) -> LinkSchedule:
    """Return the link schedule that all groups of the job share. They find it in the store below the group's own."""
    global _schedule
    if _network is None:
        raise RuntimeError("over which network? First call use_network(Network.parse('1 Gb/s, 50 us', world_size))")
    if _network.world_size < at_least:
        raise RuntimeError(f"the network has {_network.world_size} ranks, and a group wants rank {at_least - 1}")
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    _schedule = _schedule or LinkSchedule(dist.PrefixStore(f"shardlab-network-{_n_networks}", store), _network)
    return _schedule


# Name of the method in torch 2.11 or 2.13: kind, and which argument holds the tensors of unsharded size (for `_SHARES`,
# one rank's share of them).
_CHARGED = {
    "allreduce": ("all_reduce", 0),
    "allreduce_coalesced": ("all_reduce", 0),
    "reduce": ("reduce", 0),
    "broadcast": ("broadcast", 0),
    "allgather": ("all_gather", 0),
    "allgather_coalesced": ("all_gather", 0),
    "_allgather_base": ("all_gather", 0),
    "all_gather_single": ("all_gather", 0),
    "allgather_into_tensor_coalesced": ("all_gather", 0),
    "all_gather_single_coalesced": ("all_gather", 0),
    "reduce_scatter": ("reduce_scatter", 1),
    "_reduce_scatter_base": ("reduce_scatter", 1),
    "reduce_scatter_single": ("reduce_scatter", 1),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter", 1),
    "reduce_scatter_single_coalesced": ("reduce_scatter", 1),
    "alltoall": ("all_to_all", 1),
    "alltoall_base": ("all_to_all", 1),
    "all_to_all_single": ("all_to_all", 1),
    "gather": ("gather", 1),
    "scatter": ("scatter", 0),
    "barrier": ("barrier", None),
}
_SHARES = ("gather", "scatter")


def _bytes(tensors) -> int:
    return tensors.nbytes if isinstance(tensors, torch.Tensor) else sum(map(_bytes, tensors))


def _future(work: dist.Work) -> torch.futures.Future:
    """Return gloo's future. A reduce_scatter of a list has none: a thread waits for its work instead."""
    try:
        return work.get_future()
    except RuntimeError:
        trigger = torch.futures.Future()
        future = trigger.then(lambda _: [] if work.wait() else None)
        wire().in_own_thread(lambda: trigger.set_result(None))
        return future


def _charged(name: str, kind: str, full: int | None):
    def method(self, *args, **options) -> Transfer:
        full_bytes = 0 if full is None else _bytes(args[full]) * (self.size() if kind in _SHARES else 1)
        return self._charge(kind, full_bytes, lambda: getattr(self._gloo, name)(*args, **options))

    return method


for _name, (_kind, _full) in _CHARGED.items():
    setattr(SimulatedProcessGroup, _name, _charged(_name, _kind, _full))
dist.Backend.register_backend("simulated", _make_group, extended_api=True, devices=["cpu"])
