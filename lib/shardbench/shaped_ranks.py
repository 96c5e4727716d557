"""The measurements of `shaped`: the same calls on ranks with real slow links, and on ranks that simulate such links.

`main` runs inside `namespaces`. Rounds alternate the two, so that both see the machine's good and bad moments.

[Note: like with like] Times can be compared only if both sides run the same algorithm. gloo's all_reduce and all_gather
are rings, as simulated. Its reduce_scatter is an all_reduce of a copy, and its broadcast sends whole tensors down a
tree, while the simulated broadcast is a pipeline: these two are measured, but not compared. Our own collectives
(`shardlab.point_to_point_collectives`), made of sends, are certainly rings.
"""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from shardbench import namespaces
from shardlab import point_to_point_collectives as ours
from shardlab.launch import launch
from shardlab.launch.rank_main import MEETING_PLACE
from shardlab.measure.step_time import time_step
from shardlab.model import Transformer, preset
from shardlab.shard_groups import all_gather, reduce_scatter
from shardlab.text_batches import batch
from shardsim import simulated
from shardsim.link import Link
from shardsim.network import Network
from shardsim.slept_computation import sleep_in

MODEL, SEQ_LEN = "3M", 8
FORWARD_S, BACKWARD_S = 0.01, 0.03  # slept in each block
PING_PONGS = 100


@dataclass(frozen=True)
class Order:
    """The measurements to make on one network. It is passed to the namespaces as JSON."""

    nodes: int
    ranks_per_node: int
    inside_bits_per_s: float
    between_bits_per_s: float | None
    sizes_bytes: list[int]
    caps_mb: list[float]  # of DDP's buckets; if empty, DDP is not measured
    rounds: int
    repeats: int  # a round's time is the median of this many


@dataclass(frozen=True)
class Buffers:
    whole: Tensor  # (n,) float32
    share: Tensor  # (n / N,)
    inside: dist.ProcessGroup | None  # all ranks of this rank's node
    between: dist.ProcessGroup | None  # the ranks at the same place in every node


@dataclass(frozen=True)
class Case:
    name: str
    real: Callable[[Buffers], object]
    simulated: Callable[[Buffers], object]
    algorithm: str = "ring"  # of the simulated network
    differs: str = ""  # why the times must not be compared, if so


def _hierarchical(b: Buffers) -> None:
    part = torch.empty(b.whole.numel() // dist.get_world_size(b.inside))
    ours.reduce_scatter_tensor(part, b.whole, group=b.inside)
    ours.all_reduce(part, group=b.between)
    ours.all_gather_into_tensor(b.whole, part, group=b.inside)


def _all_reduce(b: Buffers) -> None:
    dist.all_reduce(b.whole)


def _ring_all_reduce(b: Buffers) -> None:
    ours.all_reduce(b.whole)


ALL_REDUCES = (
    Case("all_reduce (gloo)", _all_reduce, _all_reduce),
    Case("all_reduce (sends)", _ring_all_reduce, _all_reduce),
)
ONE_NODE = (
    *ALL_REDUCES,
    Case("all_reduce (sends, both)", _ring_all_reduce, _ring_all_reduce),
    Case("all_gather (gloo)", lambda b: all_gather(b.whole, b.share), lambda b: all_gather(b.whole, b.share)),
    Case(
        "all_gather (sends)",
        lambda b: ours.all_gather_into_tensor(b.whole, b.share),
        lambda b: all_gather(b.whole, b.share),
    ),
    Case(
        "reduce_scatter (sends)",
        lambda b: ours.reduce_scatter_tensor(b.share, b.whole),
        lambda b: reduce_scatter(b.share, b.whole),
    ),
    Case(
        "reduce_scatter (gloo)",
        lambda b: reduce_scatter(b.share, b.whole),
        lambda b: reduce_scatter(b.share, b.whole),
        differs="gloo's is an all_reduce of a copy",
    ),
    Case(
        "broadcast (gloo)",
        lambda b: dist.broadcast(b.whole, 0),
        lambda b: dist.broadcast(b.whole, 0),
        differs="gloo's sends whole tensors down a tree",
    ),
)
NODES = (*ALL_REDUCES, Case("hierarchical (sends)", _hierarchical, _all_reduce, algorithm="hierarchical"))


def cases(order: Order) -> tuple[Case, ...]:
    return ONE_NODE if order.nodes == 1 else NODES


def main(words: str) -> str:
    """Build the network, measure, and return the findings as JSON (see `measure`). Runs inside the namespaces."""
    order = Order(**json.loads(words))
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # for the simulated side: the only device of this namespace
    namespaces.build(order.nodes, order.ranks_per_node, order.inside_bits_per_s, order.between_bits_per_s)
    return json.dumps(measure(order))


def measure(order: Order) -> dict:
    """Return `latency_s` (inside, between), `tcp`, and in `cases` and `ddp` each round's seconds by name and side."""
    n = order.nodes * order.ranks_per_node
    latency_s = _launch_real(n, latencies, order)
    networks = {c.algorithm: network(order, latency_s, c.algorithm) for c in cases(order)}
    found: dict[str, dict] = {"cases": {}, "ddp": {}}
    for _ in range(order.rounds):
        _note(found["cases"], "real", _launch_real(n, case_times, order, "real", tuple(networks)))
        for algorithm, like_it in networks.items():
            times = launch(case_times, n, order, "simulated", (algorithm,), **_options(network=simulated(like_it)))[0]
            _note(found["cases"], "simulated", times)
        if order.caps_mb:
            _note(found["ddp"], "real", _launch_real(n, ddp_times, order))
            _note(
                found["ddp"],
                "simulated",
                launch(ddp_times, n, order, **_options(network=simulated(networks["ring"])))[0],
            )
    tcp = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
    return {"latency_s": latency_s, "tcp": tcp, **found}


def network(order: Order, latency_s: dict[str, float], algorithm: str) -> Network:
    """Return the simulated network, with the bandwidth of the real one and its measured latency."""
    inside = Link(order.inside_bits_per_s / 8, latency_s["inside"])
    between = Link(order.between_bits_per_s / 8, latency_s["between"]) if order.nodes > 1 else None
    return replace(Network(order.nodes, order.ranks_per_node, inside, between), algorithm=algorithm)


def _note(found: dict[str, dict[str, list[float]]], side: str, times: dict[str, float]) -> None:
    for name, seconds in times.items():
        found.setdefault(name, {"real": [], "simulated": []})[side].append(seconds)


def _options(**more: Any) -> dict[str, Any]:
    return {"device": "cpu", "stream": False, "timeout_s": 120.0} | more


def _launch_real(n: int, fn: Callable, *args: Any):
    return launch(on_real_links, n, fn, *args, **_options())[0]


# ------------------------------------------------------------------------------------------------------------ on ranks


def on_real_links(fn: Callable, *args: Any):
    """Replace the process group by one of the same ranks in their namespaces, and call fn there."""
    rank, n = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    namespaces.enter(f"rank{rank}")
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    dist.init_process_group(
        "gloo", store=dist.FileStore(os.environ[MEETING_PLACE] + ".links", n), rank=rank, world_size=n
    )
    dist.barrier()
    return fn(*args)


def latencies(order: Order) -> dict[str, float]:
    """Return the one-way seconds of a 4-byte message, software included: inside a node, and between nodes."""
    found = {"inside": _latency(1)}
    return found | ({"between": _latency(order.ranks_per_node)} if order.nodes > 1 else {})


def _latency(peer: int) -> float:
    """Return half the time of a message from rank 0 to `peer` and back."""
    message, rank = torch.zeros(1), dist.get_rank()

    def there_and_back() -> None:
        if rank == 0:
            dist.send(message, peer)
            dist.recv(message, peer)
        elif rank == peer:
            dist.recv(message, 0)
            dist.send(message, 0)

    return median(time_step(there_and_back) for _ in range(PING_PONGS)) / 2


def case_times(order: Order, side: str, algorithms: tuple[str, ...]) -> dict[str, float]:
    """Return {"name|bytes": this round's seconds} for each case that belongs to one of the algorithms."""
    groups, found = _groups(order), {}
    for size in order.sizes_bytes:
        n = size // 4 // dist.get_world_size()
        buffers = Buffers(torch.zeros(n * dist.get_world_size()), torch.zeros(n), *groups)
        for case in cases(order):
            if case.algorithm in algorithms:
                step = partial(getattr(case, side), buffers)
                times = [time_step(step) for _ in range(order.repeats + 1)]
                found[f"{case.name}|{size}"] = median(times[1:])
    return found


def _groups(order: Order) -> tuple[dist.ProcessGroup | None, dist.ProcessGroup | None]:
    """Return this rank's groups inside its node and across nodes. Every rank makes all groups, in the same order."""
    if order.nodes == 1:
        return None, None
    ranks = torch.arange(order.nodes * order.ranks_per_node).view(order.nodes, order.ranks_per_node)
    inside, _ = dist.new_subgroups_by_enumeration(ranks.tolist())
    between, _ = dist.new_subgroups_by_enumeration(ranks.T.tolist())
    return inside, between


def ddp_times(order: Order) -> dict[str, float]:
    """Return {bucket_cap_mb: this round's seconds of forward and backward with slept computation}."""
    return {str(cap): _ddp_time(cap, order.repeats) for cap in order.caps_mb}


def _ddp_time(cap_mb: float, repeats: int) -> float:
    torch.manual_seed(0)
    model = Transformer(preset(MODEL))
    for block in model.blocks:
        sleep_in(block, FORWARD_S, BACKWARD_S)
    module = DistributedDataParallel(model, bucket_cap_mb=cap_mb, gradient_as_bucket_view=True)
    n = dist.get_world_size()
    tokens, targets = batch(0, 0, dist.get_rank(), n, global_batch=n, seq_len=SEQ_LEN)

    def step() -> None:
        module.zero_grad()
        module(tokens, targets).backward()

    return median([time_step(step) for _ in range(repeats + 2)][2:])  # DDP rebuilds its buckets after its first step
