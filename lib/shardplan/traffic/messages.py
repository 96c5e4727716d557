"""One kind of collective or message of a rank: how many bytes it sends, and over which links."""

from dataclasses import dataclass

from shardplan.traffic.groups import Group


@dataclass(frozen=True)
class Send:
    """A kind of message. `full_bytes`: the unsharded size, padded; for a ring or a send, the size of one message."""

    kind: str  # all_gather, reduce_scatter, all_reduce, broadcast, ring, send
    of: str  # "parameters of a block"
    group: Group
    full_bytes: float
    times: float  # in a step, or in a micro-batch: see the function that made it

    @property
    def bytes(self) -> float:
        """Bytes the rank sends, all times added up: a ring of N sends (N-1)/N of the unsharded size."""
        n = self.group.size
        if n == 1:
            return 0.0
        share = {"all_reduce": 2 * (n - 1) / n, "ring": n - 1, "send": 1, "broadcast": 1}.get(self.kind, (n - 1) / n)
        return self.times * share * self.full_bytes

    @property
    def bytes_between(self) -> float:
        """Part of these bytes that leaves the node."""
        return self.bytes * self.group.share_between
