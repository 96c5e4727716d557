"""One kind of collective or message of a rank: how many bytes it sends, and over which links."""

from dataclasses import dataclass

from shardplan.traffic.groups import Group


@dataclass(frozen=True)
class Send:
    """`full_bytes` is the unsharded size, padded; of a ring or a send, what goes to the neighbour at once."""

    kind: str  # all_gather, reduce_scatter, all_reduce, broadcast, ring, send
    of: str  # "parameters of a block"
    group: Group
    full_bytes: float
    times: float  # in a step, or in what the function that made it says

    @property
    def bytes(self) -> float:
        """That the rank puts on the wire, all the times: a ring of N sends (N-1)/N of the unsharded size."""
        n = self.group.size
        if n == 1:
            return 0.0
        share = {"all_reduce": 2 * (n - 1) / n, "ring": n - 1, "send": 1, "broadcast": 1}.get(self.kind, (n - 1) / n)
        return self.times * share * self.full_bytes

    @property
    def bytes_between(self) -> float:
        """The part of it that leaves the node."""
        return self.bytes * self.group.share_between
