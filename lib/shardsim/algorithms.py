"""Collectives as a network carries them: rounds of messages.

Vocabulary. A *round* is a set of messages that are sent at the same time; the next round begins when the last of them
has arrived. S is the unsharded size in bytes, N the ranks of the group, M the nodes it spans, k its ranks in each node.

    collective        algorithm      rounds, and what a rank sends in each
    all_gather        ring           N-1 of S/N
    reduce_scatter    ring           N-1 of S/N
    all_reduce        ring           2 (N-1) of S/N
    all_reduce        tree           2 (log2 k + log2 M) hops, S up and S down in a pipeline
    all_reduce        hierarchical   reduce_scatter inside, all_reduce of S/k between, all_gather inside
    all_gather, reduce_scatter       hierarchical: between (S/N each), then inside (S/k each), or the reverse
    all_to_all        pairwise       N-1 of S/N, each to another rank
    broadcast, reduce ring           a chain of N-1 hops, S in a pipeline; in a tree log2 k + log2 M hops
    gather, scatter   direct         1 of S/N, all to or from one rank
    barrier                          an all_reduce of nothing

Collectives with a root are simulated with the group's first rank as root, whichever rank is the real root. If all links
are alike, this does not change the time.

[Note: channels] A ring enters and leaves each node once. So one ring alone would use one network card of each node and
leave the others idle. Therefore several rings run at once, as in NCCL. Each of these *channels* leaves a node at
another rank and carries its part of the bytes: k channels of S/k.

[Note: pipelines] A chain or tree passes its data on in pieces so small that all of its hops work at once. Then the
latencies add up, but the bytes are paid only once. So all hops but one are rounds of 0 bytes, and the last is a round
in which every hop carries all the bytes.

Source: Thakur, Rabenseifner & Gropp 2005, section 4 (ring); Sanders, Speck & Traeff 2009 (two binary trees: a rank that
is inner in one tree is a leaf in the other, so it sends and receives S, not 2 S).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log2

Message = tuple[int, int, float]  # sender, receiver, bytes
Nodes = Sequence[Sequence[int]]  # the group's ranks, node by node

ALGORITHMS = ("ring", "tree", "hierarchical")


@dataclass(frozen=True)
class Round:
    messages: tuple[Message, ...]
    times: int = 1  # number of such rounds, one after another


def rounds(kind: str, full_bytes: float, nodes: Nodes, algorithm: str = "ring") -> list[Round]:
    """Return the rounds of one collective. A single rank sends nothing, so it has no rounds."""
    if sum(map(len, nodes)) < 2:
        return []
    uniform = len({len(members) for members in nodes}) == 1
    if algorithm == "hierarchical" and not (uniform and len(nodes) > 1 and len(nodes[0]) > 1):
        algorithm = "ring"  # without two levels there is no hierarchy
    return _COLLECTIVES[kind](full_bytes, nodes, algorithm)


def all_gather(full_bytes: float, nodes: Nodes, algorithm: str) -> list[Round]:
    if algorithm != "hierarchical":
        return _ring(full_bytes, nodes)
    return _between(full_bytes / len(nodes[0]), nodes) + _inside(full_bytes, nodes)


def all_reduce(full_bytes: float, nodes: Nodes, algorithm: str) -> list[Round]:
    if algorithm == "tree":
        return _tree(full_bytes, nodes, phases=2)
    if algorithm == "ring":
        return _ring(full_bytes, nodes) * 2
    inside, between = _inside(full_bytes, nodes), _between(full_bytes / len(nodes[0]), nodes)
    return inside + between * 2 + inside


def barrier(full_bytes: float, nodes: Nodes, algorithm: str) -> list[Round]:
    return all_reduce(0, nodes, algorithm)


def broadcast(full_bytes: float, nodes: Nodes, algorithm: str) -> list[Round]:
    return _tree(full_bytes, nodes, phases=1) if algorithm == "tree" else _chain(full_bytes, nodes)


def all_to_all(full_bytes: float, nodes: Nodes, algorithm: str) -> list[Round]:
    ranks = [r for members in nodes for r in members]
    n = len(ranks)
    return [Round(tuple((r, ranks[(i + d) % n], full_bytes / n) for i, r in enumerate(ranks))) for d in range(1, n)]


def gather(full_bytes: float, nodes: Nodes, algorithm: str) -> list[Round]:
    root, *others = [r for members in nodes for r in members]
    return [Round(tuple((r, root, full_bytes / (len(others) + 1)) for r in others))]


def scatter(full_bytes: float, nodes: Nodes, algorithm: str) -> list[Round]:
    (to_root,) = gather(full_bytes, nodes, algorithm)
    return [Round(tuple((root, r, n_bytes) for r, root, n_bytes in to_root.messages))]


def send(full_bytes: float, nodes: Nodes, algorithm: str) -> list[Round]:
    """Return the round of a group of two: one message, from the first to the second."""
    sender, receiver = [r for members in nodes for r in members]
    return [Round(((sender, receiver, full_bytes),))]


_COLLECTIVES = {
    "all_gather": all_gather,
    "reduce_scatter": all_gather,  # the same messages, the other way round
    "all_reduce": all_reduce,
    "barrier": barrier,
    "broadcast": broadcast,
    "reduce": broadcast,
    "all_to_all": all_to_all,
    "gather": gather,
    "scatter": scatter,
    "send": send,
}


def channels(nodes: Nodes) -> list[list[int]]:
    """Return ring orders of the group, node by node; each leaves a node at another rank. See [Note: channels]."""
    count = min(len(members) for members in nodes) if len(nodes) > 1 else 1
    return [[r for members in nodes for r in (*members[j:], *members[:j])] for j in range(count)]


def _ring(full_bytes: float, nodes: Nodes) -> list[Round]:
    """Return N-1 rounds; in each of them every rank sends an N-th to the next."""
    orders = channels(nodes)
    n = len(orders[0])
    if n < 2:
        return []
    part = full_bytes / n / len(orders)
    edges = [(a, b, part) for order in orders for a, b in zip(order, (*order[1:], order[0]), strict=True)]
    return [Round(tuple(edges), times=n - 1)]


def _chain(full_bytes: float, nodes: Nodes) -> list[Round]:
    orders = channels(nodes)
    hops = list(zip(orders[0], orders[0][1:], strict=False))
    part = full_bytes / len(orders)
    edges = [(a, b, part) for order in orders for a, b in zip(order, order[1:], strict=False)]
    return _pipeline(hops, edges, nodes)


def _inside(full_bytes: float, nodes: Nodes) -> list[Round]:
    """Return the rounds of one ring in each node, all rings at once."""
    return _together([_ring(full_bytes, [members]) for members in nodes])


def _between(full_bytes: float, nodes: Nodes) -> list[Round]:
    """Return the rounds of k rings at once: the first ranks of all nodes, the second ranks, and so on."""
    return _together([_ring(full_bytes, [[r] for r in peers]) for peers in zip(*nodes, strict=True)])


def _together(parts: list[list[Round]]) -> list[Round]:
    return [Round(sum((r.messages for r in same), ()), same[0].times) for same in zip(*parts, strict=True)]


def _tree(full_bytes: float, nodes: Nodes, phases: int) -> list[Round]:
    """Return a pipeline up for a reduce or down for a broadcast; both (2 phases) for an all_reduce.

    There are two trees that carry half of the bytes each. Every rank sends and receives S in each phase (the few roots
    less). Bytes leave a node through all of its k ranks, S/k each.
    """
    k = min(map(len, nodes))
    peers = [[members[j] for members in nodes] for j in range(k)]
    hops = _depth(max(nodes, key=len)) + _depth(peers[0])
    edges = [edge for members in nodes for edge in _everyone(members, phases * full_bytes)]
    edges += [edge for ranks in peers for edge in _everyone(ranks, phases * full_bytes / k)]
    return _pipeline(hops * phases, edges, nodes)


def _depth(ranks: Sequence[int]) -> list[tuple[int, int]]:
    return [(ranks[0], ranks[1])] * ceil(log2(len(ranks))) if len(ranks) > 1 else []


def _everyone(ranks: Sequence[int], n_bytes: float) -> list[Message]:
    """Return messages in which every rank sends and receives `n_bytes`; it does not matter to which rank."""
    pairs = zip(ranks, (*ranks[1:], ranks[0]), strict=True) if len(ranks) > 1 else ()
    return [(a, b, n_bytes) for a, b in pairs]


def _pipeline(hops: list[tuple[int, int]], edges: list[Message], nodes: Nodes) -> list[Round]:
    """Return a pipeline's rounds, see [Note: pipelines]. The last hop is one between nodes, if there is any."""
    node_of = {r: i for i, members in enumerate(nodes) for r in members}
    *first, _ = sorted(hops, key=lambda hop: node_of[hop[0]] != node_of[hop[1]])
    return [Round(((a, b, 0),)) for a, b in first] + [Round(tuple(edges))]
