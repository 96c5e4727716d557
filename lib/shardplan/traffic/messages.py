"""One kind of collective or message of a rank: how many bytes it sends, and over which links."""

from dataclasses import dataclass

from shardlab.point_to_point_collectives import ring_all_gather_cost, ring_all_reduce_cost
from shardplan.traffic.groups import Group


@dataclass(frozen=True)
class Send:
    """A kind of message. `full_bytes`: the unsharded size, padded; for a ring or a send, the size of one message.
    For a gather or a scatter, whose owners take turns, and an all_to_all, the unsharded size of what one rank sends."""

    kind: str  # all_gather, reduce_scatter, all_reduce, broadcast, gather, scatter, all_to_all, ring, send
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
        return self.times * self._share(n) * self.full_bytes

    def _share(self, n: int) -> float:
        """Bytes that a rank of a group of n sends for each of the `full_bytes`."""
        if self.kind == "ring":  # it passes on the messages of all others
            return n - 1
        if self.kind == "send":
            return 1
        # reduce_scatter, all_to_all: as all_gather, all but its own part. broadcast: likewise, as the mean over ranks,
        # since its last rank sends nothing
        cost = ring_all_reduce_cost if self.kind == "all_reduce" else ring_all_gather_cost
        return cost(1, n).sent_bytes

    @property
    def bytes_between(self) -> float:
        """Part of these bytes that leaves the node. Each part of an all_to_all has a target of its own."""
        if self.kind in ("all_to_all", "gather", "scatter") and self.group.nodes > 1:
            n = self.group.size
            return self.bytes * (n - self.group.ranks_per_node) / (n - 1)
        return self.bytes * self.group.share_between
