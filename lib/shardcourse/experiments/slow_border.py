"""A small model on two nodes of two ranks that a slow card joins, measured and by arithmetic: for lessons 10a and 10b.

Computation is slept and the network is simulated. PyTorch's FSDP, its process groups and its messages are real.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

import torch
import torch.distributed as dist
from torch import nn

from shardlab import launch
from shardlab.measure.memory import MemoryTracker
from shardlab.measure.step_time import time_step
from shardlab.model import ModelConfig, Transformer
from shardsim import process_group, simulated
from shardsim.closed_forms import Cluster, all_gather_s, reduce_scatter_s, replicas_all_reduce_s
from shardsim.cpu_streams import run_ahead
from shardsim.network import Network
from shardsim.slept_computation import sleep_in
from shardsim.step_schedules import Unit, fsdp_step
from shardtrace.record_timeline import record_timeline
from shardtrace.timeline import Timeline

WORDS = "2x2 nodes, 80 MB/s 100 us inside, 8 MB/s 400 us between"
NETWORK = Network.parse(WORDS, 4)
CLUSTER = Cluster(100e-6, 80e6, nodes=2, ranks_per_node=2, card_latency_s=400e-6, card_bandwidth=8e6)
CONFIG = ModelConfig(256, dim=64, n_layers=8, n_heads=4, n_kv_heads=2, hidden_dim=192, max_seq_len=64)
FORWARD_S = 0.015  # of a block; its backward takes twice that
BLOCK_BYTES = sum(p.nbytes for p in Transformer(CONFIG).blocks[0].parameters())
MODEL_BYTES = sum(p.nbytes for p in Transformer(CONFIG).parameters())
ROOT_BYTES = MODEL_BYTES - CONFIG.n_layers * BLOCK_BYTES

Shard = Callable[[nn.Module], nn.Module]


@dataclass(frozen=True)
class Seen:
    """Memory, traffic and time of one strategy."""

    held_bytes: int  # parameters, gradients and AdamW's states of a rank
    left_bytes: float  # that leave a node in a step
    step_s: float


def compare(shards: Mapping[str, Shard], network: str = WORDS, rounds: int = 2) -> dict[str, Seen]:
    """Run every strategy on four ranks, a step each in turn. `shards` maps names to functions that shard a model."""
    ranks = launch(partial(_compare, dict(shards), rounds), 4, device="cpu", network=simulated(network), stream=False)
    return {
        name: Seen(ranks[0][name].held_bytes, ranks[0][name].left_bytes + ranks[1][name].left_bytes, seen.step_s)
        for name, seen in ranks[0].items()
    }


def slept_model(shard: Shard, *, forward_s: float = FORWARD_S, times: float = 1.0) -> nn.Module:
    """Return a sharded model whose blocks sleep. `times` makes this rank a straggler."""
    torch.manual_seed(0)
    model = Transformer(CONFIG)
    for i, block in enumerate(model.blocks):
        sleep_in(block, forward_s, times=times, name=f"blocks.{i}")
    return shard(model)


def step_of(model: nn.Module, sequences: int = 1) -> Callable[[], None]:
    """Return a function that does forward and backward. The host queues its work and goes on, as with a GPU."""
    tokens = torch.zeros(sequences, 8, dtype=torch.long)

    @run_ahead()
    def step() -> None:
        model.zero_grad()
        model(tokens, tokens).backward()

    return step


def traced_step(shard: Shard, slow: Mapping[int, float]) -> list[Timeline]:
    """Return each rank's timeline of a step. `slow` maps a rank to how many times as long it computes."""
    return launch(partial(_traced, shard, dict(slow)), 4, device="cpu", network=simulated(WORDS), stream=False)


def predicted_step(
    hybrid: bool = False,
    *,
    cluster: Cluster = CLUSTER,
    forward_s: float = FORWARD_S,
    times: float = 1.0,
    host_runs_ahead: bool = True,
) -> Timeline:
    """Return the step by arithmetic: lesson 6b's schedule, with the ring costs of `shardsim.closed_forms`."""
    group = replace(cluster, nodes=1) if hybrid else cluster

    def unit(name: str, n_bytes: int, forward_s: float) -> Unit:
        between_s = replicas_all_reduce_s(cluster, n_bytes / cluster.ranks_per_node) if hybrid else 0.0
        costs_s = all_gather_s(group, n_bytes), reduce_scatter_s(group, n_bytes), between_s
        return Unit(name, forward_s, 2 * forward_s, *costs_s)

    blocks = [unit(f"blocks.{i}", BLOCK_BYTES, forward_s * times) for i in range(CONFIG.n_layers)]
    return fsdp_step(unit("root", ROOT_BYTES, 0.0), blocks, host_runs_ahead=host_runs_ahead)


def _compare(shards: Mapping[str, Shard], rounds: int) -> dict[str, Seen]:
    models = {name: slept_model(shard) for name, shard in shards.items()}
    steps = {name: step_of(model) for name, model in models.items()}
    times, left = {name: [] for name in steps}, {}
    for _ in range(1 + rounds):
        for name, step in steps.items():
            process_group.clear()
            times[name].append(time_step(step))
            left[name] = _left_my_node()
    return {name: Seen(_held_bytes(models[name]), left[name], median(times[name][1:])) for name in steps}


def _left_my_node() -> float:
    """Return this rank's part of the bytes that its collectives put on its node's card."""
    node, total = NETWORK.node(dist.get_rank()), 0.0
    for c in process_group.collectives():
        load = NETWORK.bytes_by_link(c.kind, c.bytes, c.ranks)
        mine = sum(NETWORK.node(rank) == node for rank in c.ranks)
        total += load.get(("card", (node, 0), "out"), 0.0) / mine
    return total


def _held_bytes(model: nn.Module) -> int:
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.step()
    with MemoryTracker(model, optimizer) as tracker:
        return sum(tracker.resident[c] for c in ("parameters", "gradients", "optimizer_states"))


def _traced(shard: Shard, slow: Mapping[int, float]) -> Timeline:
    model = slept_model(shard, times=slow.get(dist.get_rank(), 1.0))
    tokens = torch.zeros(1, 8, dtype=torch.long)
    for _ in range(3):  # the first two warm up
        dist.barrier()
        with record_timeline(model) as recording:
            model.zero_grad()
            model(tokens, tokens).backward()
    return recording.timeline
