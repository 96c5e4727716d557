"""The state of a simulated network, which all ranks of a machine share: who has arrived, and until when a link is busy.

    Clock      of one group: when each rank issued each of its collectives, and when these begin and end
    Fabric     of the whole job: until when each link is taken

Both are float64 values in memory that every rank maps. A collective is booked once, under a lock, by the first rank
that holds its result: all others have arrived by then and have left their times here, without one more message.

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

from shardlab.simulate.network import Network

_SLOTS = 1 << 16  # far more collectives than one group ever has under way


class _SharedMemory:
    """`n` float64 values, all 0 at first, and a lock; `members` ranks that know the same store share them.

    They lie in a file without a name, which is gone with the last rank that maps it.
    """

    def __init__(self, store: dist.Store, members: int, n: int) -> None:
        if store.add("makers", 1) == 1:
            fd, path = tempfile.mkstemp(prefix="shardlab-fabric-")
            os.truncate(fd, 8 * n)  # takes up no space before it is written
            os.close(fd)
            store.set("path", path)
        path = Path(store.get("path").decode())
        self._file = path.open("r+b")  # of this process alone, so that the lock is between processes
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


class Fabric:
    """The links of the whole job, each with the time until which it is taken."""

    def __init__(self, store: dist.Store, network: Network) -> None:
        self.network = network
        names = network.all_links()
        self._places = {name: place for place, name in enumerate(names)}
        self._memory = _SharedMemory(store, network.world_size, len(names))
        self.locked = self._memory.locked

    def take(
        self, kind: str, full_bytes: int, ranks: tuple[int, ...], ready_s: float, jitter: float = 0.0
    ) -> tuple[float, float, float]:
        """(ready, start, end) of a collective of these ranks: it starts when it is ready and all its links are free.

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
    """The collectives of one group, numbered by `seq` in the order of their issue: the same order on every rank."""

    def __init__(self, store: dist.Store, name: str, ranks: tuple[int, ...], fabric: Fabric) -> None:
        self.name, self.ranks, self.fabric = name, ranks, fabric
        self._width = len(ranks) + 4  # arrivals; number of the collective that is booked, and its three times
        self._memory = _SharedMemory(store, len(ranks), _SLOTS * self._width)

    def arrive(self, seq: int, place: int, at_s: float) -> None:
        """Rank `place` of the group issues collective `seq`."""
        self._memory.values[self._slot(seq) + place] = at_s

    def book(self, seq: int, kind: str, full_bytes: int) -> tuple[float, float, float]:
        """(ready, start, end): from the table if another rank has booked it, else from the fabric."""
        table, place = self._memory.values, self._slot(seq) + len(self.ranks)
        if table[place] != seq + 1:  # or no lock is needed: a rank that holds it may be put off the CPU
            with self.fabric.locked():
                if table[place] != seq + 1:
                    table[place + 1], table[place + 2], table[place + 3] = self._take(seq, kind, full_bytes)
                    table[place] = seq + 1  # last, for those who look without the lock
        return tuple(table[place + 1 : place + 4].tolist())

    def _take(self, seq: int, kind: str, full_bytes: int) -> tuple[float, float, float]:
        most = self.fabric.network.jitter
        jitter = random.Random(f"{self.name} {seq}").uniform(0, most) if most else 0.0
        return self.fabric.take(kind, full_bytes, self.ranks, max(self._arrivals(seq)), jitter)

    def missing(self, seq: int) -> list[int]:
        """The ranks that have not issued it: what stands in their slot is older than their collective before."""
        now, before = self._arrivals(seq), self._arrivals(seq - 1)
        return [rank for rank, at, earlier in zip(self.ranks, now, before, strict=True) if at <= earlier]

    def _slot(self, seq: int) -> int:
        return seq % _SLOTS * self._width

    def _arrivals(self, seq: int) -> list[float]:
        slot = self._slot(seq)
        return self._memory.values[slot : slot + len(self.ranks)].tolist()
