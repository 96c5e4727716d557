"""A cluster's network: nodes of ranks, fast inside, slow between, and what a collective costs on it.

    rank ──port──┐                     ┌──port── rank
    rank ──port──┤ switch ── NIC ~~~~~ │            inside a node: every rank's port to the switch of its node
                 └ (node 0)            (node 1)      between: network cards (NICs), one a node or one a rank

Ports and cards are full duplex, the switches ideal. A round of a collective takes as long as its busiest link: the
latency, plus the bytes of all the round's messages on that link over its bandwidth. A round that is a pipeline takes
the latencies of its longest chain, plus the bytes on its busiest link over the bandwidth. See `algorithms`.

A network in words has parts in any order, separated by commas:

    1 Gb/s, 50 us                                     one node: bandwidth and latency of a rank's port
    2x4 nodes, 300 GB/s inside, 50 GB/s between       2 nodes of 4 ranks, which share their node's one card
    ... 300 GB/s 3 us inside, 50 GB/s 10 us between   latencies; 3 us and 10 us if not given
    ... 50 GB/s between a rank                        every rank has its own card
    ... tree | halving-doubling | hierarchical        the algorithm; ring if not given
    ... jitter 10%                                    a collective takes up to 10% longer, drawn at random
    ... rank 3 is 2x slower                           its port and card take twice as long
    dgx-h100, 2x2 nodes                               a machine of `machines`, here two nodes of two of its GPUs
    infinitely fast                                   costs nothing
"""

import functools
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from shardsim.algorithms import ALGORITHMS, Round, rounds
from shardsim.link import BANDWIDTH, LATENCY, Link, bandwidth, seconds
from shardsim.machines import MACHINES, machine

INSIDE_LATENCY_S, BETWEEN_LATENCY_S = 3e-6, 10e-6  # if the words give none
_FREE = Link(float("inf"), 0.0)

# A link's name: its kind (port or card), its owner (a rank, or a card's node and number), and its direction.
LinkName = tuple[str, int | tuple[int, int], str]


@dataclass(frozen=True)
class Network:
    """A network of `nodes` times `ranks_per_node` ranks; rank r is on node r // ranks_per_node."""

    nodes: int
    ranks_per_node: int
    inside: Link  # a rank's port
    between: Link | None = None  # a network card; None where there is one node
    nics_per_node: int = 1  # 1: shared by the node's ranks; ranks_per_node: one each
    algorithm: str = "ring"
    jitter: float = 0.0
    straggler: tuple[int, float] | None = None  # (rank, times as slow)

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.ranks_per_node < 1:
            raise ValueError(f"a network needs at least one node of one rank, not {self.nodes}x{self.ranks_per_node}")
        if self.nodes > 1 and self.between is None:
            raise ValueError(f"{self.nodes} nodes, and no link between them: add e.g. '50 GB/s between'")
        if self.ranks_per_node % self.nics_per_node:
            raise ValueError(f"{self.ranks_per_node} ranks a node can't share {self.nics_per_node} cards evenly")
        if self.algorithm not in ALGORITHMS:
            raise ValueError(f"no algorithm {self.algorithm!r}; there are {', '.join(ALGORITHMS)}")
        if self.jitter < 0:
            raise ValueError(f"jitter is a share of a collective's time, 0 or more, not {self.jitter}")
        if self.straggler and not (0 <= self.straggler[0] < self.world_size and self.straggler[1] > 0):
            raise ValueError(
                f"the straggler is one of ranks 0 to {self.world_size - 1} and takes more than 0 times as "
                f"long, not {self.straggler}"
            )

    @property
    def world_size(self) -> int:
        return self.nodes * self.ranks_per_node

    def node(self, rank: int) -> int:
        return rank // self.ranks_per_node

    # What a collective costs

    def seconds(self, kind: str, full_bytes: int, ranks: Sequence[int]) -> float:
        """Seconds of one collective of these ranks on an otherwise idle network; `full_bytes` is the unsharded size."""
        return _cost(self, kind, full_bytes, tuple(ranks))[0]

    def links(self, kind: str, ranks: Sequence[int]) -> frozenset[LinkName]:
        """Links that a collective uses; it holds them from its start to its end."""
        return _cost(self, kind, 1, tuple(ranks))[1]

    def bytes_by_link(self, kind: str, full_bytes: int, ranks: Sequence[int]) -> dict[LinkName, float]:
        """Total bytes that a collective puts on each link."""
        total: defaultdict[LinkName, float] = defaultdict(float)
        for r in self.rounds(kind, full_bytes, ranks):
            for link, n_bytes in self._load(r).items():
                total[link] += n_bytes
        return dict(total)

    def rounds(self, kind: str, full_bytes: int, ranks: Sequence[int]) -> list[Round]:
        by_node: dict[int, list[int]] = {}
        for r in ranks:
            by_node.setdefault(self.node(r), []).append(r)
        return rounds(kind, full_bytes, list(by_node.values()), self.algorithm)

    def link(self, name: LinkName) -> Link:
        """Return the link of that name; the straggler's links are slower."""
        kind, owner, _ = name
        link = self.inside if kind == "port" else self.between
        if self.straggler and owner == (self.straggler[0] if kind == "port" else self._card(self.straggler[0])):
            return link.slower(self.straggler[1])
        return link

    def all_links(self) -> list[LinkName]:
        ports = [("port", r) for r in range(self.world_size)]
        cards = [("card", (node, i)) for node in range(self.nodes) for i in range(self.nics_per_node)]
        return [(*owner, way) for owner in ports + cards for way in ("out", "in")]

    def _card(self, rank: int) -> tuple[int, int]:
        return self.node(rank), rank % self.ranks_per_node * self.nics_per_node // self.ranks_per_node

    def _path(self, sender: int, receiver: int) -> tuple[LinkName, LinkName]:
        if self.node(sender) == self.node(receiver):
            return ("port", sender, "out"), ("port", receiver, "in")
        return ("card", self._card(sender), "out"), ("card", self._card(receiver), "in")

    def _load(self, r: Round) -> dict[LinkName, float]:
        """Bytes that one round puts on each link."""
        load: defaultdict[LinkName, float] = defaultdict(float)
        for sender, receiver, n_bytes in r.messages:
            for link in self._path(sender, receiver):
                load[link] += n_bytes
        return load

    def _round_s(self, r: Round, load: dict[LinkName, float]) -> float:
        if not r.chains:
            return max(self.link(name).carry_s(n_bytes) for name, n_bytes in load.items())
        chain_s = max(sum(max(self.link(x).latency_s for x in self._path(*hop)) for hop in chain) for chain in r.chains)
        return chain_s + max(n_bytes / self.link(name).bandwidth_bytes_per_s for name, n_bytes in load.items())

    def scaled(self, latency: float, bandwidth: float) -> "Network":
        """Return this network with every latency times `latency` and every bandwidth times `bandwidth`."""

        def scale(link: Link) -> Link:
            return Link(link.bandwidth_bytes_per_s * bandwidth, link.latency_s * latency)

        return replace(self, inside=scale(self.inside), between=self.between and scale(self.between))

    @classmethod
    def parse(cls, words: str, world_size: int) -> "Network":
        """Read a network in words (see the module). Raises ValueError for unreadable words or another world size."""
        found: dict = {}
        for part in words.split(","):
            for pattern, fields in _WORDS:
                if match := pattern.fullmatch(part.strip()):
                    found |= fields(*match.groups())
                    break
            else:
                raise ValueError(f"can't read {part.strip()!r} in the network {words!r}: {_HELP}")
        network = cls(**_complete(found, words, world_size))
        if network.world_size != world_size:
            shape = f"{network.nodes}x{network.ranks_per_node}"
            raise ValueError(
                f"the network {words!r} has {shape} ranks, and the job has {world_size}: change one of the two"
            )
        return network


@functools.lru_cache(maxsize=4096)
def _cost(network: Network, kind: str, full_bytes: int, ranks: tuple[int, ...]) -> tuple[float, frozenset[LinkName]]:
    total_s, links = 0.0, set()
    for r in network.rounds(kind, full_bytes, ranks):
        load = network._load(r)
        total_s += network._round_s(r, load)
        links |= load.keys()
    return total_s, frozenset(links)


# Words: a pattern for each part, and the fields that it sets.

_HELP = (
    "write e.g. '1 Gb/s, 50 us', '2x4 nodes, 300 GB/s inside, 50 GB/s between', or a machine, "
    f"'{next(iter(MACHINES))}, 2x2 nodes'; there are {', '.join(MACHINES)}"
)


def _pattern(words: str) -> re.Pattern:
    return re.compile(words.replace(" ", r"\s*"))


def _between(number: str, unit: str, latency: str | None, latency_unit: str, own: str | None) -> dict:
    found = {"between": _link(BETWEEN_LATENCY_S, number, unit, latency, latency_unit)}
    return found | {"a card each": True} if own else found


def _link(default_s: float, number: str, unit: str, latency: str | None, latency_unit: str) -> Link:
    return Link(bandwidth(number, unit), seconds(latency, latency_unit) if latency else default_s)


def _of_machine(name: str) -> dict:
    m = machine(name)
    return {
        "inside": m.inside,
        "between": m.between,
        "a card each": m.nics_per_node > 1,
        "largest node": m.gpus_per_node,
    }


_WORDS = [
    (_pattern(r"(\d+) x (\d+) nodes?"), lambda n, k: {"nodes": int(n), "ranks_per_node": int(k)}),
    (_pattern(rf"{BANDWIDTH}(?: {LATENCY})? inside"), lambda *link: {"inside": _link(INSIDE_LATENCY_S, *link)}),
    (_pattern(rf"{BANDWIDTH}(?: {LATENCY})? between( a rank)?"), _between),
    (_pattern(BANDWIDTH), lambda number, unit: {"bandwidth": bandwidth(number, unit)}),
    (_pattern(LATENCY), lambda number, unit: {"latency": seconds(number, unit)}),
    (_pattern("|".join(ALGORITHMS).join("()")), lambda name: {"algorithm": name}),
    (_pattern(r"jitter (\d+(?:\.\d+)?) %"), lambda percent: {"jitter": float(percent) / 100}),
    (_pattern(r"rank (\d+) is (\d+(?:\.\d+)?) x slower"), lambda r, times: {"straggler": (int(r), float(times))}),
    (_pattern("|".join(MACHINES).join("()")), _of_machine),
    (_pattern("infinitely fast"), lambda: {"inside": _FREE, "between": _FREE}),
]


def _complete(found: dict, words: str, world_size: int) -> dict:
    """Return the fields of a Network: those that the words give, and defaults for the others."""
    if ("bandwidth" in found) != ("latency" in found):
        raise ValueError(
            f"can't read the network {words!r}: a link has a bandwidth and a latency, as in '1 Gb/s, 50 us'"
        )
    if "bandwidth" in found:
        found["inside"] = Link(found.pop("bandwidth"), found.pop("latency"))
    if "inside" not in found:
        raise ValueError(f"can't read the network {words!r}: {_HELP}")
    largest, own_card = found.pop("largest node", inf), found.pop("a card each", False)
    if "ranks_per_node" in found and found["ranks_per_node"] > largest:
        raise ValueError(f"{words!r}: the machine has {largest} GPUs in a node, not {found['ranks_per_node']}")
    if "nodes" not in found:
        found["ranks_per_node"] = min(largest, world_size)
        found["nodes"] = -(-world_size // found["ranks_per_node"])
    if found["nodes"] == 1:
        found.pop("between", None)
    return found | {"nics_per_node": found["ranks_per_node"] if own_card else 1}
