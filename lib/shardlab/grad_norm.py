"""Clip gradients that are sharded over ranks: sum the p-th powers of the ranks' norms, take the root, and scale."""

from collections import defaultdict
from collections.abc import Iterable
from functools import reduce
from math import inf

import torch
import torch.distributed as dist
from torch import Tensor

from shardlab.shard_groups import local, shard_groups

# Groups over which a parameter is sharded, each with the type of device that it sends from.
Groups = tuple[tuple[str | torch.device, dist.ProcessGroup | None], ...]


def clip_grad_norm_(parameters: Tensor | Iterable[Tensor], max_norm: float, norm_type: float | str = 2.0) -> Tensor:
    """Scale gradients so that their norm over parameters and ranks is at most `max_norm`; return the norm before.

    Whole parameters, DTensors and flat parameters may be mixed. torch.nn.utils.clip_grad_norm_ would clip a flat
    parameter by this rank's norm alone.
    Sends: one all_reduce of one element for each group over which parameters are sharded.
    """
    params = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    gradients = [(shard_groups(p), None if p.grad is None else local(p.grad)) for p in params]
    return clip_sharded_(gradients, max_norm, norm_type, common_dtype(params), params[0].device)


@torch.no_grad()
def clip_sharded_(
    gradients: Iterable[tuple[Groups, Tensor | None]],
    max_norm: float,
    norm_type: float | str,
    dtype: torch.dtype,
    device: torch.device | str,
) -> Tensor:
    """Scale gradients so that their norm over all parameters and ranks is at most `max_norm`; return the norm before.

    `gradients` has a pair for each parameter: its groups, and this rank's part of its gradient or None. All ranks must
    name the same groups in the same order, even ranks without a gradient. The norm is a scalar on `device`, computed in
    float32 at least and rounded to `dtype` at the end.
    Sends: one all_reduce of one element for each group.
    """
    by_groups: dict[Groups, list[Tensor]] = defaultdict(list)
    for groups, gradient in gradients:
        by_groups[groups] += [] if gradient is None else [gradient]
    total = total_norm(by_groups, norm_type, dtype, device)
    scale = (max_norm / (total + 1e-6)).clamp(max=1.0)
    for gradient in (g for held in by_groups.values() for g in held):
        gradient.mul_(scale.to(gradient.device))
    return total.to(dtype)


def norm_over_ranks(norm: Tensor, norm_type: float, group: dist.ProcessGroup | None) -> Tensor:
    """Compute the norm over all ranks' shards from the norm of this rank's, a scalar; all ranks get the same result.

    All ranks pass the same dtype, of 32 bits or more: float16 can't hold the square of 256. Shards must not overlap:
    a parameter that two ranks hold would count twice.
    Sends: one all_reduce of one element.
    Source: torch.nn.utils.clip_grad_norm_ on DTensors; torch.distributed.fsdp.FullyShardedDataParallel.clip_grad_norm_.
    """
    if norm_type == inf:
        total = norm.clone()
        dist.all_reduce(total, dist.ReduceOp.MAX, group=group)
        return total
    total = norm.pow(norm_type)
    dist.all_reduce(total, group=group)
    return total.pow_(1 / norm_type)


def total_norm(
    by_groups: dict[Groups, list[Tensor]], norm_type: float | str, dtype: torch.dtype, device: torch.device | str
) -> Tensor:
    """Compute the norm of all gradients, a scalar on `device`, in `dtype` but at least 32 bits: round it last.

    `by_groups` holds this rank's gradients by their groups. All ranks must pass the same groups in the same order and
    the same dtype, even ranks without a gradient.
    Sends: one all_reduce of one element for each group.
    """
    dtype, norm_type = torch.promote_types(dtype, torch.float32), float(norm_type)
    zero = torch.zeros((), dtype=dtype, device=device)
    totals = [zero]
    for groups, gradients in by_groups.items():
        norms = [torch.linalg.vector_norm(g, norm_type, dtype=dtype).to(device) for g in gradients if g.numel()]
        norm = torch.linalg.vector_norm(torch.stack([zero, *norms]), norm_type)
        for place, group in groups:  # a group may send from GPUs only
            norm = norm_over_ranks(norm.to(place), norm_type, group)
        totals.append(norm.to(device))
    return torch.linalg.vector_norm(torch.stack(totals), norm_type)


def common_dtype(tensors: Iterable[Tensor]) -> torch.dtype:
    """Smallest dtype that can hold all tensors' numbers; float32 if there are none."""
    return reduce(torch.promote_types, [t.dtype for t in tensors] or [torch.float32])
