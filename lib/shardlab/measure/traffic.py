"""What a rank sends: which collectives, how many, how many bytes, and when."""

import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field

from shardlab import flight


@dataclass
class Traffic:
    """The collectives that this rank issued inside a `record_traffic` block, in order."""

    started_s: float  # seconds since the epoch, as the collectives' issue times
    ended_s: float = 0.0
    collectives: list[flight.Collective] = field(default_factory=list)

    def count(self, kind: str | None = None) -> int:
        return sum(kind in (None, c.kind) for c in self.collectives)

    def kinds(self) -> Counter:
        return Counter(c.kind for c in self.collectives)

    def wire_bytes(self, world_size: int) -> float:
        """Bytes that this rank puts on the wire when every collective runs as a ring."""
        return sum(wire_bytes(c, world_size) for c in self.collectives)


def wire_bytes(c: flight.Collective, world_size: int) -> float:
    """Bytes a rank sends for one collective as a ring of N: the textbook's bandwidth-optimal algorithms.

    all_reduce 2 (N-1)/N of the tensor; all_gather, reduce_scatter and all_to_all (N-1)/N of the whole (unsharded)
    tensor; broadcast, and whatever else there is, what the rank puts in, once.
    Source: Thakur, Rabenseifner & Gropp 2005, sections 4.1, 4.2, 4.5.
    """
    share, whole = (world_size - 1) / world_size, max(c.input_bytes, c.output_bytes)
    if c.kind == "all_reduce":
        return 2 * share * whole
    if c.kind in ("all_gather", "reduce_scatter", "all_to_all"):
        return share * whole
    return c.input_bytes if world_size > 1 else 0.0


@contextmanager
def record_traffic():
    """Everything this rank issues inside the block; complete when the block ends.

    Raises RuntimeError if the flight recorder's ring overflowed meanwhile: a shortened account would mislead.
    """
    traffic = Traffic(started_s=time.time())
    yield traffic
    traffic.ended_s = time.time()
    traffic.collectives += [c for c in flight.collectives() if c.issued_s >= traffic.started_s]
    if len(traffic.collectives) >= flight.BUFFER_ENTRIES:
        raise RuntimeError(f"the flight recorder keeps {flight.BUFFER_ENTRIES} collectives: record fewer steps at once")
