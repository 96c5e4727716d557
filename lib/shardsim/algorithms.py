"""Collectives as a network carries them: rounds of messages.

Vocabulary. A *round* is a set of messages that are sent at the same time; the next round begins when the last of them
has arrived. S is the unsharded size in bytes, N the ranks of the group, M the nodes it spans, k its ranks in each node.

    collective        algorithm          rounds, and what a rank sends in each
    all_gather        ring               a pipeline of N-1 hops; each sends (N-1)/N S
    reduce_scatter    ring               the same
    all_reduce        ring               that twice
    all_reduce        tree               a pipeline: 2 (k-1) hops inside nodes, 2 log2 M between; S up and S down
    all_reduce        halving-doubling   2 log2 N rounds: S/2, S/4, ... S/N, and back
    all_reduce        hierarchical       reduce_scatter inside, all_reduce of S/k between, all_gather inside
    all_gather, reduce_scatter           hierarchical: between (S/N each), then inside (S/k each), or the reverse
    all_to_all        pairwise           N-1 of S/N, each to another rank
    broadcast, reduce chain              a pipeline of N-1 hops; each sends S
    gather, scatter   direct             1 of S/N, all to or from one rank
    barrier                              an all_reduce of nothing

Collectives with a root are simulated with the group's first rank as root, whichever rank is the real root. If all links
are alike, this does not change the time.

[Note: channels] A ring enters and leaves each node once. So one ring alone would use one network card of each node and
leave the others idle. Therefore several rings run at once, as in NCCL. Each of these *channels* leaves a node at
another rank and carries its part of the bytes: k channels of S/k. Trees have channels, too.

[Note: pipelines] A ring, chain or tree passes its data on in pieces so small that all of its hops work at once. So the
latencies of its longest *chain* of hops add up, and the bytes of its busiest link are paid once. A ring's chain has N-1
hops, and M-1 of them leave a node. This is how NCCL counts. (A piece that starts in the middle of a node leaves one
node more.)

[Note: two trees] A binary tree leaves half of its ranks idle: leaves have no children. So two trees carry half of the
bytes each. A node with two children in one is a leaf in the other. So no node sends more than S up and S down, and of
two nodes each sends half of that. The trees join nodes. Inside a node the ranks form a chain, which is short. On one
node the trees join the ranks themselves.

Source: Thakur, Rabenseifner & Gropp 2005, section 4 (ring, recursive halving and doubling); Sanders, Speck & Traeff
2009 (two trees); NCCL's src/graph/trees.cc, ncclGetDtree (which two trees), and src/graph/tuning.cc (how many hops).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

Message = tuple[int, int, float]  # sender, receiver, bytes
Hop = tuple[int, int]  # sender, receiver
Nodes = Sequence[Sequence[int]]  # the group's ranks, node by node

ALGORITHMS = ("ring", "tree", "halving-doubling", "hierarchical")


@dataclass(frozen=True)
class Round:
    messages: tuple[Message, ...]
    chains: tuple[tuple[Hop, ...], ...] = ()  # of a pipeline: the hops that a piece takes; see [Note: pipelines]


def rounds(kind: str, full_bytes: float, nodes: Nodes, algorithm: str = "ring") -> list[Round]:
    """Return the rounds of one collective. A single rank sends nothing, so it has no rounds.

    A collective that does not know the algorithm uses a ring or a chain. So do groups that don't fit it: hierarchies
    need several nodes of several ranks each, and halving needs a power of two.
    """
    if sum(map(len, nodes)) < 2:
        return []
    return _COLLECTIVES[kind](full_bytes, nodes, algorithm)


def all_gather(full_bytes: float, nodes: Nodes, algorithm: str) -> list[Round]:
    if not (algorithm == "hierarchical" and _two_levels(nodes)):
        return _ring(full_bytes, nodes)
    return _between(full_bytes / len(nodes[0]), nodes) + _inside(full_bytes, nodes)


def all_reduce(full_bytes: float, nodes: Nodes, algorithm: str) -> list[Round]:
    if algorithm == "tree":
        return _double_tree(full_bytes, nodes)
    if algorithm == "halving-doubling" and sum(map(len, nodes)).bit_count() == 1:
        return _halving_doubling(full_bytes, nodes)
    if algorithm == "hierarchical" and _two_levels(nodes):
        inside, between = _inside(full_bytes, nodes), _between(full_bytes / len(nodes[0]), nodes)
        return inside + between * 2 + inside
    return _ring(full_bytes, nodes) * 2


def barrier(full_bytes: float, nodes: Nodes, algorithm: str) -> list[Round]:
    return all_reduce(0, nodes, algorithm)


def broadcast(full_bytes: float, nodes: Nodes, algorithm: str) -> list[Round]:
    orders = channels(nodes)
    part = full_bytes / len(orders)
    return [_pipeline([(a, b, part) for order in orders for a, b in pairwise(order)], orders)]


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


def double_tree(n: int) -> tuple[list[Hop], list[Hop]]:
    """Return the (child, parent) pairs of two trees over 0 to n-1, each 0 to ceil(log2 n) hops deep.

    In the first, the lowest set bit of a number tells its height. The second is its mirror image, or, if n is odd, the
    first with all numbers shifted by one. See [Note: two trees].
    """
    first = [(child, _parent(child, n)) for child in range(1, n)]
    return first, [((a + 1) % n, (b + 1) % n) if n % 2 else (n - 1 - a, n - 1 - b) for a, b in first]


def _parent(child: int, n: int) -> int:
    bit = child & -child
    above = (child ^ bit) | bit << 1
    return above if above < n else child ^ bit


def _double_tree(full_bytes: float, nodes: Nodes) -> list[Round]:
    """Return a pipeline that reduces up both trees and broadcasts down. Each channel's trees join its nodes' heads."""
    nodes = [[r] for r in nodes[0]] if len(nodes) == 1 else nodes
    count = min(map(len, nodes))
    messages, paths = [], []
    for j in range(count):
        orders = [[*members[j:], *members[:j]] for members in nodes]
        up = [(b, a, full_bytes / count) for order in orders for a, b in pairwise(order)]
        for tree in double_tree(len(nodes)):
            up += [(orders[child][0], orders[parent][0], full_bytes / count / 2) for child, parent in tree]
            longest = max((_to_root(orders, dict(tree), leaf) for leaf in range(len(nodes))), key=len)
            paths.append([*longest, *longest[-2::-1]])
        messages += up + [(b, a, n_bytes) for a, b, n_bytes in up]
    return [_pipeline(messages, paths)]


def _to_root(orders: list[list[int]], parents: dict[int, int], node: int) -> list[int]:
    """Return the ranks that a node's data passes: its own from the last to the first, then the heads up to the root."""
    path = orders[node][::-1]
    while node in parents:
        node = parents[node]
        path = [*path, orders[node][0]]
    return path


def _halving_doubling(full_bytes: float, nodes: Nodes) -> list[Round]:
    """Return rounds in which ranks exchange S/2 with the rank N/2 away, S/4 with N/4, ... S/N with 1, and back."""
    ranks = [r for members in nodes for r in members]
    n, found, distance = len(ranks), [], len(ranks) // 2
    while distance:
        n_bytes = full_bytes * distance / n
        found.append(Round(tuple((r, ranks[i ^ distance], n_bytes) for i, r in enumerate(ranks))))
        distance //= 2
    return found + found[::-1]


def _ring(full_bytes: float, nodes: Nodes) -> list[Round]:
    """Return a pipeline in which every rank sends all parts but one to the next rank of its ring."""
    orders = channels(nodes)
    n = len(orders[0])
    if n < 2:
        return []
    part = full_bytes * (n - 1) / n / len(orders)
    edges = [(a, b, part) for order in orders for a, b in pairwise([*order, order[0]])]
    return [_pipeline(edges, orders)]


def _inside(full_bytes: float, nodes: Nodes) -> list[Round]:
    """Return the round of one ring in each node, all rings at once."""
    return _together([_ring(full_bytes, [members]) for members in nodes])


def _between(full_bytes: float, nodes: Nodes) -> list[Round]:
    """Return the round of k rings at once: the first ranks of all nodes, the second ranks, and so on."""
    return _together([_ring(full_bytes, [[r] for r in peers]) for peers in zip(*nodes, strict=True)])


def _together(parts: list[list[Round]]) -> list[Round]:
    return [Round(*(sum(same, ()) for same in zip(*((r.messages, r.chains) for (r,) in parts), strict=True)))]


def _pipeline(messages: Sequence[Message], paths: Sequence[Sequence[int]]) -> Round:
    """Return a round whose chains pass these ranks, one after the other."""
    return Round(tuple(messages), tuple(tuple(pairwise(path)) for path in paths))


def _two_levels(nodes: Nodes) -> bool:
    return len({len(members) for members in nodes}) == 1 and len(nodes) > 1 and len(nodes[0]) > 1
