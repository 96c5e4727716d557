"""The backend's collectives compared on a model's bytes: reduce_scatter / all_reduce, and all_gather / broadcasts.

By the ring's formulas a reduce_scatter costs half an all_reduce, and an all_gather costs as much as a broadcast from
every rank of its own share. If a backend is far from these ratios, so is every strategy that uses it. Read the step
times of `bench parallel` together with these ratios.
"""

from dataclasses import asdict

import torch
import torch.distributed as dist
from torch import Tensor

from shardlab import launch, local_device, point_to_point_collectives
from shardlab.measure.step_time import compare
from shardlab.shard_groups import all_gather, reduce_scatter


def run(n_elements: int, world_size: int, pairs: int, device: str | None = None) -> dict[str, dict]:
    """Return {name: Comparison of the two sides}, for a float32 tensor of about `n_elements` on each rank."""
    return launch(_rank, world_size, n_elements, pairs, device=device)[0]


def _rank(n_elements: int, pairs: int) -> dict[str, dict]:
    n = dist.get_world_size()
    share = torch.ones(n_elements // n, device=local_device())
    whole = torch.ones(n * share.numel(), device=local_device())
    sides = {
        "reduce_scatter / all_reduce": (lambda: reduce_scatter(share, whole), lambda: dist.all_reduce(whole)),
        "our ring's reduce_scatter / all_reduce": (
            lambda: point_to_point_collectives.reduce_scatter_tensor(share, whole),
            lambda: dist.all_reduce(whole),
        ),
        "all_gather / N broadcasts": (lambda: all_gather(whole, share), lambda: _broadcasts(whole, n)),
    }
    return {name: asdict(compare(a, b, pairs=pairs)) for name, (a, b) in sides.items()}


def _broadcasts(whole: Tensor, world_size: int) -> None:
    works = [dist.broadcast(part, src=r, async_op=True) for r, part in enumerate(whole.chunk(world_size))]
    for work in works:
        work.wait()
