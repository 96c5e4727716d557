"""Checks of the bytes that a rank sends in a step, by the planner's formulas for rings, as in NCCL and the papers."""

from shardcourse.claims.claim import Findings
from shardcourse.claims.planned import in_each_node, setups
from shardplan.planned_job import Setup
from shardplan.traffic import bytes_by_link
from shardsim.link_speeds import LINKS

GB = 1e9


def _sent(setup: Setup) -> float:
    found = bytes_by_link(setup)
    return found["inside"] + found["between"]


def beside(sharding, other, model, gpus, machine="dgx-h100", **strategy) -> Findings:
    """Return the bytes sent, as a multiple of what another strategy sends."""
    these, those = ([*setups(model, machine, gpus, sharding=s, **strategy)] for s in (sharding, other))
    return {when: _sent(a) / _sent(b) for (when, a), (_, b) in zip(these, those, strict=True)}


def in_models(sharding, model, gpus, machine="dgx-h100", precision="bf16-master") -> Findings:
    """Return the bytes sent, as a multiple of the model's gradient bytes (in the dtype that is reduced)."""
    found = {}
    for when, setup in setups(model, machine, gpus, sharding=sharding, precision=precision):
        found[when] = _sent(setup) / (setup.strategy.bytes.reduce * setup.shape.n_params)
    return found


def volume(model, machine, gpus, **strategy) -> Findings:
    """Return the GB that a rank sends, over all links together."""
    return {when: _sent(setup) / GB for when, setup in setups(model, machine, gpus, **strategy)}


def hybrid_sends_less(model, machine, gpus, **strategy) -> Findings:
    """Check whether a copy of the model in each node sends fewer bytes between nodes than one over all nodes."""
    found = {}
    for when, setup in setups(model, machine, gpus, **strategy):
        found[when] = bytes_by_link(in_each_node(setup))["between"] < 0.99 * bytes_by_link(setup)["between"]
    return found


def tensor_parallel_sends_more(model, machine, gpus, **strategy) -> Findings:
    """Check whether tensor parallelism over all GPUs sends more bytes than FULL_SHARD over them."""
    cut = setups(model, machine, gpus, tensor=gpus, **strategy)
    sharded = setups(model, machine, gpus, sharding="FULL_SHARD", **strategy)
    return {when: _sent(a) > _sent(b) for (when, a), (_, b) in zip(cut, sharded, strict=True)}


def link_gb_per_s(links: list[str], directions: int = 1) -> Findings:
    """Return each link's GB/s by its data sheet; with directions=2, both directions together."""
    return {link: directions * LINKS[link].bandwidth / GB for link in links}
