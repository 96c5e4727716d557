"""The norm of gradients that no rank has all of: each rank's own to the power, summed over ranks, and its root."""

from collections.abc import Iterable
from functools import reduce
from math import inf

import torch
import torch.distributed as dist
from torch import Tensor


def norm_over_ranks(norm: Tensor, norm_type: float, group: dist.ProcessGroup | None) -> Tensor:
    """From the norm of this rank's shards, a scalar, that of every rank's together, the same on all of them.

    All give it in one dtype, of 32 bits or more: a float16 has no room for the square of 256. Shards must not overlap:
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
    by_groups: dict[tuple, list[Tensor]], norm_type: float | str, dtype: torch.dtype, device: torch.device | str
) -> Tensor:
    """The norm of all gradients, a scalar on `device`; in `dtype`, but of 32 bits at least, so round it last.

    `by_groups`: this rank's gradients, by the groups whose ranks together hold such a parameter, as `shard_groups` has
    them. All ranks name the same groups in one order and the same dtype, also those without a gradient.
    Sends: one all_reduce of one element for each group.
    """
    dtype, norm_type = torch.promote_types(dtype, torch.float32), float(norm_type)
    zero = torch.zeros((), dtype=dtype, device=device)
    totals = [zero]
    for groups, gradients in by_groups.items():
        norms = [torch.linalg.vector_norm(g, norm_type, dtype=dtype).to(device) for g in gradients if g.numel()]
        norm = torch.linalg.vector_norm(torch.stack([zero, *norms]), norm_type)
        for place, group in groups:  # which may know GPUs only
            norm = norm_over_ranks(norm.to(place), norm_type, group)
        totals.append(norm.to(device))
    return torch.linalg.vector_norm(torch.stack(totals), norm_type)


def common_dtype(tensors: Iterable[Tensor]) -> torch.dtype:
    """Wide enough for all."""
    return reduce(torch.promote_types, [t.dtype for t in tensors] or [torch.float32])
