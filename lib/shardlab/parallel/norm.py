"""The norm of gradients that no rank has all of: each rank's own to the power, summed over ranks, and its root."""

from math import inf

import torch
import torch.distributed as dist
from torch import Tensor


def norm_over_ranks(norm: Tensor, norm_type: float, group: dist.ProcessGroup | None) -> Tensor:
    """From the norm of this rank's shards, a scalar, that of every rank's together, the same on all of them.

    Shards must not overlap: a parameter that two ranks hold would count twice. 16 bits are added up in 32: a float16
    has no room for the square of 256.
    Sends: one all_reduce of one element.
    Source: torch.nn.utils.clip_grad_norm_ on DTensors; torch.distributed.fsdp.FullyShardedDataParallel.clip_grad_norm_.
    """
    total = norm.to(torch.promote_types(norm.dtype, torch.float32), copy=True)
    if norm_type == inf:
        dist.all_reduce(total, dist.ReduceOp.MAX, group=group)
        return total.to(norm.dtype)
    total.pow_(norm_type)
    dist.all_reduce(total, group=group)
    return total.pow_(1 / norm_type).to(norm.dtype)
