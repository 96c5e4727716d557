"""Seconds of a rank's messages, each alone: as NCCL runs them, by `shardsim.closed_forms`."""

from collections.abc import Iterable

from shardplan.planned_job import Setup
from shardplan.traffic.groups import Group
from shardplan.traffic.messages import Send
from shardsim.closed_forms import PROTOCOLS, Cluster, all_to_all_s, nccl_s


def seconds(setup: Setup, send: Send) -> float:
    """Seconds of one message, on otherwise idle links. NCCL takes the fastest algorithm and protocol."""
    if send.group.size == 1:
        return 0.0
    c, n_bytes = cluster(setup, send.group), send.full_bytes
    if send.kind in ("gather", "scatter"):  # all send to one, or one to all: as much as if all did in turn
        n_bytes *= send.group.size
    if send.kind in ("all_to_all", "gather", "scatter"):
        return PROTOCOLS["ring", "Simple"].start_s + all_to_all_s(c, n_bytes)
    if send.kind not in ("ring", "send"):
        return nccl_s(c, send.kind, n_bytes)
    hop_s = c.cards_s(n_bytes) if send.group.nodes > 1 else c.port_s(n_bytes)
    return hop_s * (send.group.size - 1 if send.kind == "ring" else 1)


def all_s(setup: Setup, sends: Iterable[Send]) -> float:
    """Seconds of all messages one after the other, each as often as it says."""
    return sum(s.times * seconds(setup, s) for s in sends)


def cluster(setup: Setup, group: Group) -> Cluster:
    """Return a group's links."""
    return Cluster.of(setup.machine, group.nodes, group.ranks_per_node, group.cards)
