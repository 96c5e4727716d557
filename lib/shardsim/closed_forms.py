"""Cost of collectives in closed form: latencies plus bytes over bandwidth, added up by hand.

These are predictions. `network` computes its times in another way: it sends every message of every round over its
links. Where both agree, both are likely to be right.

The cluster has m nodes of k ranks. A message takes alpha + bytes / B on a rank's port, or on one of the c network cards
of a node. S is the unsharded size, N = m k. A round takes as long as its busiest link.

    all_gather, reduce_scatter   ring           N-1 rounds of S/N; in each round, S/N in all leave each node
                                 hierarchical   m-1 rounds of S/m between the nodes, k-1 rounds of S/k inside
    all_reduce                   ring           twice an all_gather
                                 hierarchical   one inside, twice one of S/k between, one inside
                                 tree           2 (log2 k + log2 m) hops of a pipeline that carries S up and S down
    broadcast                    ring           N-1 hops of a pipeline that carries S
                                 tree           log2 k + log2 m such hops
    all_to_all                   pairwise       N-1 rounds of S/N, each to another rank

Source: Thakur, Rabenseifner & Gropp 2005, section 4; Sanders, Speck & Traeff 2009, for two trees at once.
"""

from dataclasses import dataclass, replace
from math import ceil, log2


@dataclass(frozen=True)
class Cluster:
    """Nodes and their links: latencies in seconds, bandwidths in bytes a second, each way."""

    port_latency_s: float
    port_bandwidth: float
    nodes: int = 1
    ranks_per_node: int = 1
    card_latency_s: float = 0.0
    card_bandwidth: float = float("inf")
    cards_per_node: int = 1

    @property
    def world_size(self) -> int:
        return self.nodes * self.ranks_per_node

    def port_s(self, n_bytes: float) -> float:
        return self.port_latency_s + n_bytes / self.port_bandwidth

    def cards_s(self, n_bytes: float) -> float:
        """Seconds in which a node's cards carry `n_bytes`, which they share."""
        return self.card_latency_s + n_bytes / self.cards_per_node / self.card_bandwidth


def all_gather_s(c: Cluster, full_bytes: float, algorithm: str = "ring") -> float:
    m, k, n = c.nodes, c.ranks_per_node, c.world_size
    if m > 1 and k > 1 and algorithm == "hierarchical":
        return _between_s(c, full_bytes) + _inside_s(c, full_bytes)
    return (n - 1) * _ring_round_s(c, full_bytes / n)


reduce_scatter_s = all_gather_s


def all_reduce_s(c: Cluster, full_bytes: float, algorithm: str = "ring") -> float:
    if algorithm == "tree":
        return _tree_s(c, full_bytes, phases=2)
    if c.nodes > 1 and c.ranks_per_node > 1 and algorithm == "hierarchical":
        return 2 * _inside_s(c, full_bytes) + 2 * _between_s(c, full_bytes)
    return 2 * all_gather_s(c, full_bytes)


def broadcast_s(c: Cluster, full_bytes: float, algorithm: str = "ring") -> float:
    m, k = c.nodes, c.ranks_per_node
    if algorithm == "tree":
        return _tree_s(c, full_bytes, phases=1)
    if c.world_size == 1:
        return 0.0
    latencies = m * (k - 1) * c.port_latency_s + (m - 1) * c.card_latency_s
    return latencies + _pipeline_s(c, full_bytes, full_bytes * ((k - 1) / k if m > 1 else 1))


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


def _ring_round_s(c: Cluster, n_bytes: float) -> float:
    """Seconds in which every rank sends `n_bytes`. With several nodes, k rings leave each node at different ranks."""
    if c.nodes == 1:
        return c.port_s(n_bytes)
    k = c.ranks_per_node
    return max(c.port_s(n_bytes * (k - 1) / k) if k > 1 else 0.0, c.cards_s(n_bytes))


def _inside_s(c: Cluster, full_bytes: float) -> float:
    k = c.ranks_per_node
    return (k - 1) * c.port_s(full_bytes / k)


def _between_s(c: Cluster, full_bytes: float) -> float:
    """Seconds of k rings at once between the nodes, each with S/k."""
    return (c.nodes - 1) * c.cards_s(full_bytes / c.nodes)


def _tree_s(c: Cluster, full_bytes: float, phases: int) -> float:
    if c.world_size == 1:
        return 0.0
    hops_inside, hops_between = (phases * ceil(log2(size)) for size in (c.ranks_per_node, c.nodes))
    latencies = hops_inside * c.port_latency_s + hops_between * c.card_latency_s
    return latencies + _pipeline_s(c, phases * full_bytes, phases * full_bytes)


def _pipeline_s(c: Cluster, card_bytes: float, port_bytes: float) -> float:
    """Seconds beyond the latencies of all hops, until the slower kind of link has carried all of the bytes."""
    last_hop_s = c.card_latency_s if c.nodes > 1 else c.port_latency_s
    inside_s = c.port_s(port_bytes) if c.ranks_per_node > 1 else 0.0
    between_s = c.cards_s(card_bytes) if c.nodes > 1 else 0.0
    return max(inside_s, between_s) - last_hop_s
