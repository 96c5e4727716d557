"""Predictions for the benchmark of the simulated network, by arithmetic alone. Nothing here runs anything."""

from dataclasses import replace
from functools import cache

import torch

from shardbench.interconnect_runs import STAND_IN
from shardlab.ddp import assign_buckets
from shardlab.model import Transformer
from shardplan.formulas import Expected, units_of
from shardsim import closed_forms
from shardsim.closed_forms import Cluster
from shardsim.network import Network
from shardsim.step_schedules import Unit, ddp_step, fsdp_step
from shardsim.time_dilation import Imitation
from shardtrace.timeline import Timeline


def cluster(network: Network) -> Cluster:
    """Return the network as a Cluster, for the closed forms."""
    c = Cluster(network.inside.latency_s, network.inside.bandwidth_bytes_per_s, network.nodes, network.ranks_per_node)
    if network.between is None:
        return c
    card = {"card_latency_s": network.between.latency_s, "card_bandwidth": network.between.bandwidth_bytes_per_s}
    return replace(c, **card, cards_per_node=network.nics_per_node)


def predicted_ddp(imitation: Imitation, cap_bytes: int, *, overlap: bool = True) -> Timeline:
    return _ddp(cluster(imitation.network), cap_bytes, imitation.step_s, overlap=overlap)


def predicted_real_ddp(imitation: Imitation, cap_bytes: int) -> Timeline:
    """Predict the imitated job on the real machine: without the scaling law, with larger buckets."""
    real = cluster(imitation.real_network)
    return _ddp(real, cap_bytes, imitation.real_step_s, bytes_times=1 / imitation.byte_ratio)


def _ddp(c: Cluster, cap_bytes: int, step_s: float, *, bytes_times: float = 1.0, overlap: bool = True) -> Timeline:
    """Predict a DDP step. A block's gradients are ready when its backward ends, the output layer's at the start."""
    model, n = _stand_in(), STAND_IN.n_layers
    forward_s, backward_s = step_s / 3, step_s * 2 / 3
    ready_s = dict.fromkeys(model.parameters(), 0.0)
    for i, block in enumerate(model.blocks):
        ready_s |= dict.fromkeys(block.parameters(), (n - i) / n * backward_s)
    ready_s[model.embedding.weight] = backward_s
    buckets = assign_buckets(list(model.parameters()), cap_bytes, cap_bytes)
    ready = [max(ready_s[p] for p in bucket) for bucket in buckets]
    cost = [closed_forms.all_reduce_s(c, bytes_times * sum(p.nbytes for p in bucket)) for bucket in buckets]
    return ddp_step(forward_s, backward_s, ready, cost, overlap=overlap)


def predicted_fsdp(imitation: Imitation, *, replicas: int = 1, **options) -> Timeline:
    """Predict an FSDP step, one unit a block. With replicas, each node has one, and shards travel inside nodes."""
    everybody = cluster(imitation.network)
    shards = replace(everybody, nodes=1) if replicas > 1 else everybody

    def unit(name: str, n_bytes: int, forward_s: float, backward_s: float) -> Unit:
        between_s = closed_forms.replicas_all_reduce_s(everybody, n_bytes / shards.world_size) if replicas > 1 else 0.0
        gather_s, scatter_s = closed_forms.all_gather_s(shards, n_bytes), closed_forms.reduce_scatter_s(shards, n_bytes)
        return Unit(name, forward_s, backward_s, gather_s, scatter_s, between_s)

    *blocks, root = (sum(p.nbytes for p in params) for params in _units())
    compute = imitation.forward_s, imitation.backward_s
    return fsdp_step(
        unit("root", root, 0.0, 0.0), [unit(f"blocks.{i}", b, *compute) for i, b in enumerate(blocks)], **options
    )


def held_bytes(world_size: int, replicas: int) -> int:
    """Return the bytes of a rank's parameters, gradients and AdamW states."""
    expected = Expected("FULL_SHARD", _units(), world_size, world_size // replicas)
    return expected.parameters + expected.gradients + expected.optimizer_states


def _units() -> list[list[torch.Tensor]]:
    return units_of(_stand_in(), _stand_in().blocks)


@cache
def _stand_in() -> Transformer:
    with torch.device("meta"):
        return Transformer(STAND_IN)
