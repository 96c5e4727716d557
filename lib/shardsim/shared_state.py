"""State of a simulated network, shared by all ranks of a machine: who has arrived, and until when each link is busy.

    LinkSchedule   for the whole job: the time until which each link is busy
    Clock          for one group: when each rank issued each of its collectives, and when these begin and end
    Mail           for one group: when each message from rank to rank arrives

All are float64 values in memory that every rank maps. A collective is booked once, under a lock, by the first rank that
has its result after all ranks have issued it. The ranks' times are in this memory, so booking needs no message.

Times are `time.monotonic()`, the same clock for all processes of a machine.
"""

import fcntl
import mmap
import os
import random
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path

import torch.distributed as dist

from shardlab.measure.store_writes import not_the_programs
from shardsim.network import Network

_SLOTS = 1 << 16  # far more collectives than one group ever has in progress
_MESSAGES = 1 << 8  # from one rank to one other


class _SharedMemory:
    """`n` float64 values, all 0 at first, and a lock; `members` ranks that know the same store share them.

    The values are in a file without a name, which is deleted with the last rank that maps it.
    """

    @not_the_programs
    def __init__(self, store: dist.Store, members: int, n: int) -> None:
        if store.add("makers", 1) == 1:
            fd, path = tempfile.mkstemp(prefix="shardlab-network-")
            os.truncate(fd, 8 * n)  # takes up no space before it is written
            os.close(fd)
            store.set("path", path)
        path = Path(store.get("path").decode())
        self._file = path.open("r+b")  # opened anew by each process, so that the lock is between processes
        self.values = memoryview(mmap.mmap(self._file.fileno(), 0)).cast("d")
        if store.add("mapped", 1) == members:
            path.unlink()
        self._threads = threading.Lock()

    @contextmanager
    def locked(self):
        with self._threads:
            fcntl.flock(self._file, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(self._file, fcntl.LOCK_UN)


class LinkSchedule:
    """The links of the whole job, each with the time until which it is busy."""

    def __init__(self, store: dist.Store, network: Network) -> None:
        self.network = network
        names = network.all_links()
        self._places = {name: place for place, name in enumerate(names)}
        self._memory = _SharedMemory(store, network.world_size, len(names))
        self.locked = self._memory.locked

    def take(
        self, kind: str, full_bytes: int, ranks: tuple[int, ...], ready_s: float, jitter: float = 0.0
    ) -> tuple[float, float, float]:
        """Return (ready, start, end) of a collective: it starts when it is ready and all links that it uses are free.

        They are taken until its end. Call it with the lock held.
        """
        busy = self._memory.values
        places = [self._places[name] for name in self.network.links(kind, ranks)]
        start_s = max([ready_s, *(busy[place] for place in places)])
        end_s = start_s + self.network.seconds(kind, full_bytes, ranks) * (1 + jitter)
        for place in places:
            busy[place] = end_s
        return ready_s, start_s, end_s


class Clock:
    """The collectives of one group, numbered by `seq` in the order of their issue: the same order on every rank.

    A row of the table is one collective. For each rank it has the number (seq + 1) of the last collective that the rank
    issued in this row, and when. Then come the number of the collective that is booked, and its three times.
    """

    def __init__(self, store: dist.Store, name: str, ranks: tuple[int, ...], schedule: LinkSchedule) -> None:
        self.name, self.ranks, self.schedule = name, ranks, schedule
        self._width = 2 * len(ranks) + 4
        self._memory = _SharedMemory(store, len(ranks), _SLOTS * self._width)

    def arrive(self, seq: int, place: int, at_s: float) -> None:
        """Record that rank `place` of the group issues collective `seq`."""
        table, row = self._memory.values, self._row(seq)
        table[row + len(self.ranks) + place] = at_s
        table[row + place] = seq + 1

    def missing(self, seq: int) -> list[int]:
        """Return the ranks that have not issued collective `seq`."""
        row = self._row(seq)
        issued = self._memory.values[row : row + len(self.ranks)].tolist()
        return [rank for rank, number in zip(self.ranks, issued, strict=True) if number != seq + 1]

    def book(self, seq: int, kind: str, full_bytes: int) -> tuple[float, float, float]:
        """Return (ready, start, end): from the table if another rank has booked it, else from the schedule."""
        table, place = self._memory.values, self._row(seq) + 2 * len(self.ranks)
        if table[place] != seq + 1:  # first without the lock: a rank that holds it may be off the CPU
            with self.schedule.locked():
                if table[place] != seq + 1:
                    table[place + 1], table[place + 2], table[place + 3] = self._take(seq, kind, full_bytes)
                    table[place] = seq + 1  # last, as other ranks look without the lock
        return table[place + 1], table[place + 2], table[place + 3]

    def _take(self, seq: int, kind: str, full_bytes: int) -> tuple[float, float, float]:
        first = self._row(seq) + len(self.ranks)
        arrivals = self._memory.values[first : first + len(self.ranks)].tolist()
        most = self.schedule.network.jitter
        jitter = random.Random(f"{self.name} {seq}").uniform(0, most) if most else 0.0
        return self.schedule.take(kind, full_bytes, self.ranks, max(arrivals), jitter)

    def _row(self, seq: int) -> int:
        return seq % _SLOTS * self._width


class Mail:
    """Arrival times of messages, by sender, receiver and number: known to the sender, and learnt by the receiver."""

    def __init__(self, store: dist.Store, world_size: int) -> None:
        self._world_size = world_size
        self._memory = _SharedMemory(store, world_size, 2 * _MESSAGES * world_size**2)

    def post(self, sender: int, receiver: int, number: int, due_s: float) -> None:
        table, slot = self._memory.values, self._slot(sender, receiver, number)
        table[slot + 1] = due_s
        table[slot] = number + 1

    def due_s(self, sender: int, receiver: int, number: int) -> float:
        """Return when a message arrives, once its data is there; 0 if the message is so old that it is forgotten."""
        table, slot = self._memory.values, self._slot(sender, receiver, number)
        return table[slot + 1] if table[slot] == number + 1 else 0.0

    def _slot(self, sender: int, receiver: int, number: int) -> int:
        return 2 * ((sender * self._world_size + receiver) * _MESSAGES + number % _MESSAGES)
