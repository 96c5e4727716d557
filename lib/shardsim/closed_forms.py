"""The cost of collectives in closed form: by the textbook's algorithms, and by NCCL, which chooses among them.

These are predictions. `network` computes its times in another way: it sends every message of every round over its
links. Where both agree, both are likely to be right.

The cluster has m nodes of k ranks. A message takes alpha + bytes / B on a rank's port (in), or on one of the c network
cards of a node (out). S is the unsharded size, N = m k. Times are in seconds, sizes in bytes. A round takes as long as
its busiest link. A pipeline takes the latencies of all hops that follow each other, plus the larger of these: the bytes
on a port over its bandwidth, and the bytes on a node's cards over theirs.

    kind          algorithm         hops                        bytes on a port      bytes on a node's cards
    all_gather    ring              N - m in, m - 1 out         (N-1)/N (k-1)/k S    (N-1)/N S
                  ring, m = 1       k - 1 in                    (k-1)/k S
                  hierarchical      m - 1 out; then k - 1 in    (k-1)/k S            (m-1)/m S
    all_reduce    ring, hierarchical                            twice an all_gather
                  tree              2 (k - 1) in, 2 log2 m out  2 (k-1)/k S          min(m/2, 2) S
                  tree, m = 1       2 log2 k in                 min(k/2, 2) S
                  halving-doubling  2 log2 N rounds             S/2, S/4, ...        k S/2, k S/4, ...
    broadcast     chain             m (k - 1) in, m - 1 out     (k-1)/k S            S
    all_to_all    pairwise          N-1 rounds of S/N, each to another rank

reduce_scatter costs what all_gather does. Source: Thakur, Rabenseifner & Gropp 2005, section 4; Sanders, Speck & Traeff
2009, for two trees at once; NCCL, src/graph/tuning.cc, for the hops of rings and trees. (NCCL rounds log2 m down. The
depth of its tree is rounded up, and so is ours.)

[Note: NCCL] NCCL estimates the time of each algorithm with each protocol, and takes the fastest pair. A protocol says
how a receiver learns that data has come. LL writes a flag beside every 4 bytes: fast, at half of the bandwidth. LL128
has a flag in every 128 bytes. Simple sends whole pieces at the full bandwidth, and then a flag: slow for small
messages. T0 starts the kernel. NVLS lets NVLink's switch add up, from Hopper on; each port carries (1 + 1/k) S.

[Note: pieces] A real tree can't cut its data as finely as it likes, because each piece costs a hop's latency. n pieces
take (hops + n) (alpha + S / n / B); the best n leaves L + W + 2 sqrt(L W), where L is the latencies and W the bytes'
time. NCCL's up and down go on at once, so they pay less than 2 (PIECES).

[Note: contention] NCCL's kernels hold one processor a channel: 16 to 24 of an A100's 108 or an H100's 132. A ring's
kernel also reads or writes each byte about three times, which takes a third of the memory's bandwidth while it runs at
370 GB/s. Together, measured: computation is 18.9% slower on average, 40% at worst (Lee et al. 2025, "Characterizing
Compute-Communication Overlap", on A100, H100 and MI250, GPT and Llama models).

[Note: constants] From NCCL, src/graph: T0, latencies, LL_OUT and PLATEAU (tuning.cc), IN_SHARE (topo.h) and OUT_SHARE
(search.cc). Fitted on published tables: NVLS_SHARE (all_reduce of 8 H100 in a node, the largest sizes), PIECES and the
latency of AWS's network (all_reduce of two nodes of 8 H100, all sizes, the least mean |log(predicted / measured)|).
`shardlab bench interconnect` compares the model with tables that were not fitted.
"""

from dataclasses import dataclass, replace
from math import ceil, inf, log2, sqrt

from shardsim.machines import LATENCY_S, Machine

IN_SHARE = 20 / 25  # of a port: what NCCL counts on for an NVLink of 25 GB/s. PCIe's share is in `machines`
OUT_SHARE = 48 / 50  # of a card: the fastest channel that NCCL tries over a card of 50 GB/s
NVLS_SHARE = 0.86  # of the bandwidth that rings reach on a port
PIECES = 1.25
PLATEAU = 1.4  # a ring's all_reduce between nodes with protocol Simple: its latencies, times this
LL_OUT = 20.4e9  # bytes/s of a node at most: between nodes, LL's flags pass through the hosts' memory
CONTENTION = 0.189  # share of its speed that computation loses during a collective, see [Note: contention]
MISSES = (1 << 20, 32 << 20, 2.5)  # between nodes, from 1 to 32 MiB, published times are up to 2.5 times as long


@dataclass(frozen=True)
class Protocol:
    """How NCCL sends: seconds to start and of a hop, and the bandwidth that it leaves."""

    start_s: float
    in_s: float  # of a hop over NVLink
    out_s: float  # of a hop over InfiniBand
    share: float  # of the links' bandwidth
    node_limit: float = inf  # bytes/s that leave a node at most


# us, from hwLat and baseLat of tuning.cc. NCCL counts a tree's pieces with its latencies; see [Note: pieces].
PROTOCOLS = {
    ("ring", "LL"): Protocol(6.6e-6, 0.6e-6, 2.7e-6, 1 / 2, LL_OUT),
    ("ring", "LL128"): Protocol(14e-6, 1.9e-6, 4e-6, 120 / 128),
    ("ring", "Simple"): Protocol(8.4e-6, 3.4e-6, 14e-6, 1.0),
    ("tree", "LL"): Protocol(6.8e-6, 0.6e-6, 5e-6, 1 / 2, LL_OUT),
    ("tree", "LL128"): Protocol(14e-6, 1.25e-6, 8.5e-6, 120 / 128),
    ("tree", "Simple"): Protocol(8.4e-6, 3.4e-6, 14e-6, 1.0),
    ("nvls", "Simple"): Protocol(23e-6, 0.0, 14e-6, 1.0),  # between nodes, trees join the switches (NVLSTree)
}


@dataclass(frozen=True)
class Cluster:
    """Nodes and their links: latencies in seconds, bandwidths in bytes a second, each way."""

    port_latency_s: float
    port_bandwidth: float
    nodes: int = 1
    ranks_per_node: int = 1
    card_latency_s: float = 0.0
    card_bandwidth: float = inf
    cards_per_node: float = 1
    nvls: bool = False  # the switch between the ports can add up

    @classmethod
    def of(cls, machine: Machine, nodes: int, ranks_per_node: int, cards_per_node: float) -> "Cluster":
        """Return a group's part of some machines, with the bandwidths that NCCL reaches on large messages."""
        link, card = machine.gpu.link, machine.between
        port_bandwidth = machine.inside.bandwidth_bytes_per_s * (1.0 if link.startswith("PCIe") else IN_SHARE)
        card_bandwidth = card.bandwidth_bytes_per_s * OUT_SHARE if card else inf
        cards = (card.latency_s if card else 0.0, card_bandwidth, cards_per_node)
        nvls = link in ("NVLink 4", "NVLink 5")
        return cls(machine.inside.latency_s, port_bandwidth, nodes, ranks_per_node, *cards, nvls)

    @property
    def world_size(self) -> int:
        return self.nodes * self.ranks_per_node

    def port_s(self, n_bytes: float) -> float:
        return self.port_latency_s + n_bytes / self.port_bandwidth

    def cards_s(self, n_bytes: float) -> float:
        """Seconds in which a node's cards carry `n_bytes`, which they share."""
        return self.card_latency_s + n_bytes / self.cards_per_node / self.card_bandwidth

    def pipeline_s(self, hops_in: float, hops_out: float, port_bytes: float, node_bytes: float) -> float:
        """Seconds of a pipeline: the latencies of its hops, and the bytes on a port or on a node's cards."""
        latency_s = hops_in * self.port_latency_s + hops_out * self.card_latency_s
        in_s = port_bytes / self.port_bandwidth if self.ranks_per_node > 1 else 0.0
        out_s = node_bytes / self.cards_per_node / self.card_bandwidth if self.nodes > 1 else 0.0
        return latency_s + max(in_s, out_s)

    def with_protocol(self, p: Protocol) -> "Cluster":
        """Return the links as a protocol has them: in a node NCCL's latencies in proportion, between nodes added.

        NCCL's latencies are for NVLink and InfiniBand. Other links are slower by what `machines` says.
        """
        port_s = p.in_s * self.port_latency_s / LATENCY_S["NVLink"]
        card_s = p.out_s + self.card_latency_s - LATENCY_S["InfiniBand"] if self.nodes > 1 else 0.0
        card_bandwidth = min(self.card_bandwidth * p.share, p.node_limit / self.cards_per_node)
        port = {"port_latency_s": port_s, "port_bandwidth": self.port_bandwidth * p.share}
        return replace(self, **port, card_latency_s=max(card_s, 0.0), card_bandwidth=card_bandwidth)


# ---------------------------------------------------------------------------------------------------- the textbook's


def all_gather_s(c: Cluster, full_bytes: float, algorithm: str = "ring") -> float:
    """Seconds of an all_gather or reduce_scatter; `full_bytes` is the unsharded size.

    (N - m) in + (m - 1) out + the larger of (N-1)/N S on the cards and, of k rings at once, (k-1)/k of it on a port.
    Source: NCCL, tuning.cc, nsteps and nInterSteps; Thakur et al. 2005, section 4.1.
    """
    m, k, n = c.nodes, c.ranks_per_node, c.world_size
    if m > 1 and k > 1 and algorithm == "hierarchical":
        return _between_s(c, full_bytes) + all_gather_s(replace(c, nodes=1), full_bytes)
    sent = (n - 1) / n * full_bytes  # by each rank, and by each node: its k rings leave it at different ranks
    return c.pipeline_s(n - m, m - 1, sent * ((k - 1) / k if m > 1 else 1), sent)


reduce_scatter_s = all_gather_s


def all_reduce_s(c: Cluster, full_bytes: float, algorithm: str = "ring") -> float:
    """Seconds of an all_reduce of `full_bytes`, by "ring", "tree", "halving-doubling" or "hierarchical".

    A ring's is twice an all_gather: 2 (N - m) in + 2 (m - 1) out, and 2 (N-1)/N S. Halving needs a power of two, and a
    hierarchy several nodes of several ranks; else it is a ring. Source: Thakur et al. 2005, section 4.5.
    """
    if algorithm == "tree":
        return _double_tree_s(c, full_bytes)
    if algorithm == "halving-doubling" and c.world_size.bit_count() == 1:
        return _halving_doubling_s(c, full_bytes)
    return 2 * all_gather_s(c, full_bytes, algorithm)


def broadcast_s(c: Cluster, full_bytes: float, algorithm: str = "chain") -> float:
    """Seconds of a broadcast of `full_bytes` along a chain: m (k - 1) in + (m - 1) out, and S. NCCL has no other."""
    m, k = c.nodes, c.ranks_per_node
    return c.pipeline_s(m * (k - 1), m - 1, full_bytes * ((k - 1) / k if m > 1 else 1), full_bytes)


def all_to_all_s(c: Cluster, full_bytes: float, algorithm: str = "pairwise") -> float:
    """Seconds of an all_to_all. In round d rank r sends to r + d: min(k, d, N - d) messages leave each node."""
    k, n = c.ranks_per_node, c.world_size
    total_s = 0.0
    for leave in (min(k, d, n - d) if c.nodes > 1 else 0 for d in range(1, n)):
        busiest = min(k // c.cards_per_node, leave) * c.cards_per_node  # ranks that leave together share a card
        inside_s = c.port_s(full_bytes / n) if leave < k else 0.0
        total_s += max(inside_s, c.cards_s(full_bytes / n * busiest) if leave else 0.0)
    return total_s


def replicas_all_reduce_s(c: Cluster, shard_bytes: float) -> float:
    """Seconds of HSDP's all_reduces, all at once, each over `shard_bytes`: a rank's peers are on the other nodes.

    Groups that share a card take turns.
    """
    one_s = 2 * _between_s(replace(c, cards_per_node=1), shard_bytes)
    return c.ranks_per_node / c.cards_per_node * one_s


def _between_s(c: Cluster, full_bytes: float) -> float:
    """Seconds of k rings at once between the nodes, each with S/k."""
    return c.pipeline_s(0, c.nodes - 1, 0, (c.nodes - 1) / c.nodes * full_bytes)


def _double_tree_s(c: Cluster, full_bytes: float) -> float:
    """Seconds of two trees at once, each with half of the bytes: 2 (k - 1) in + 2 log2 m out, and 2 S on the cards.

    Of two nodes each sends S only. Source: NCCL, tuning.cc; Sanders, Speck & Traeff 2009.
    """
    m, k = c.nodes, c.ranks_per_node
    if m == 1:  # the trees join the ranks
        return c.pipeline_s(2 * ceil(log2(k)), 0, min(k / 2, 2) * full_bytes, 0)
    return c.pipeline_s(2 * (k - 1), 2 * ceil(log2(m)), 2 * (k - 1) / k * full_bytes, min(m / 2, 2) * full_bytes)


def _halving_doubling_s(c: Cluster, full_bytes: float) -> float:
    """Seconds of 2 log2 N rounds of S/2, S/4, ... S/N. Ranks that exchange far away leave their node all at once.

    Source: Thakur et al. 2005, sections 4.1 and 4.5.
    """
    k, n, one_way_s, distance = c.ranks_per_node, c.world_size, 0.0, c.world_size // 2
    while distance:
        n_bytes = full_bytes * distance / n
        one_way_s += c.cards_s(k * n_bytes) if distance >= k else c.port_s(n_bytes)
        distance //= 2
    return 2 * one_way_s


# ------------------------------------------------------------------------------------------------------------- NCCL's


def nccl_choices_s(c: Cluster, kind: str, full_bytes: float) -> dict[tuple[str, str], float]:
    """Return the seconds of each (algorithm, protocol) that NCCL could take. See [Note: NCCL].

    `kind` is all_gather, reduce_scatter, all_reduce or broadcast. Only an all_reduce has more than rings.
    """
    possible = {"ring": True, "tree": c.nodes > 1, "nvls": c.nvls and c.ranks_per_node > 1}
    return {
        (algorithm, protocol): _with_s(c, kind, full_bytes, algorithm, protocol)
        for algorithm, protocol in PROTOCOLS
        if algorithm == "ring" or (kind == "all_reduce" and possible[algorithm])
    }


def nccl_s(c: Cluster, kind: str, full_bytes: float) -> float:
    """Seconds of a collective that NCCL runs: the fastest of its choices."""
    return min(nccl_choices_s(c, kind, full_bytes).values()) if c.world_size > 1 else 0.0


def nccl_range_s(c: Cluster, kind: str, full_bytes: float) -> tuple[float, float]:
    """Seconds at least and at most. They differ in the range where NCCL's own estimate misses, too: see MISSES."""
    seconds, (least, most, times) = nccl_s(c, kind, full_bytes), MISSES
    return seconds, seconds * (times if c.nodes > 1 and least <= full_bytes <= most else 1.0)


def _with_s(c: Cluster, kind: str, full_bytes: float, algorithm: str, protocol: str) -> float:
    """Seconds with one algorithm and protocol: T0 + the textbook's cost on the protocol's links.

    A tree pays for its pieces as well: PIECES sqrt(L W). Source: NCCL, tuning.cc, ncclTopoTuneModel.
    """
    p = PROTOCOLS[algorithm, protocol]
    on = c.with_protocol(p)
    if algorithm == "ring":
        cost_s = {"all_reduce": all_reduce_s, "broadcast": broadcast_s}.get(kind, all_gather_s)
        more = PLATEAU - 1 if kind == "all_reduce" and c.nodes > 1 and protocol == "Simple" else 0.0
        return p.start_s + cost_s(on, full_bytes) + more * (p.start_s + cost_s(on, 0))
    cost_s = _nvls_s if algorithm == "nvls" else _double_tree_s
    latency_s, whole_s = cost_s(on, 0), cost_s(on, full_bytes)
    return p.start_s + whole_s + PIECES * sqrt(latency_s * (whole_s - latency_s))


def _nvls_s(c: Cluster, full_bytes: float) -> float:
    """Seconds of an all_reduce by the nodes' switches, which trees join if there are several: 2 log2 m out.

    Each rank sends S to the switch, and 1/k S of sums to all: (1 + 1/k) S on a port. Source: NCCL, tuning.cc, NVLSTree.
    """
    port_bytes = (1 + 1 / c.ranks_per_node) * full_bytes / NVLS_SHARE
    return c.pipeline_s(0, 2 * ceil(log2(c.nodes)), port_bytes, min(c.nodes / 2, 2) * full_bytes)
