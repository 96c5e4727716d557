"""Seconds of a rank's messages, each alone: `shardsim.closed_forms` at the bandwidths that NCCL reaches."""

from collections.abc import Iterable
from math import inf

from shardplan.planned_job import Setup
from shardplan.speed import achievable
from shardplan.traffic.groups import Group
from shardplan.traffic.messages import Send
from shardsim import closed_forms


def seconds(setup: Setup, send: Send) -> float:
    """Seconds of one message, on otherwise idle links, by a ring, which is optimal in bandwidth.

    An all_reduce may use trees, which are faster for small messages over many ranks: NCCL takes the faster one.
    """
    if send.group.size == 1:
        return 0.0
    c, n_bytes = cluster(setup, send.group), send.full_bytes
    if send.kind == "all_reduce":
        return min(closed_forms.all_reduce_s(c, n_bytes, algorithm) for algorithm in ("ring", "tree"))
    if send.kind not in ("ring", "send"):
        return getattr(closed_forms, f"{send.kind}_s")(c, n_bytes)
    hop_s = c.cards_s(n_bytes) if send.group.nodes > 1 else c.port_s(n_bytes)
    return hop_s * (send.group.size - 1 if send.kind == "ring" else 1)


def all_s(setup: Setup, sends: Iterable[Send]) -> float:
    """Seconds of all messages one after the other, each as often as it says."""
    return sum(s.times * seconds(setup, s) for s in sends)


def cluster(setup: Setup, group: Group) -> closed_forms.Cluster:
    """Return a group's links, with the share of their bandwidths that collectives reach."""
    machine, between = setup.machine, setup.machine.between
    return closed_forms.Cluster(
        machine.inside.latency_s,
        machine.inside.bandwidth_bytes_per_s * achievable.inside_share(machine),
        group.nodes,
        group.ranks_per_node,
        between.latency_s if between else 0.0,
        between.bandwidth_bytes_per_s * achievable.BETWEEN if between else inf,
        group.cards,
    )
