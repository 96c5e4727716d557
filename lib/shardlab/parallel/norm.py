"""The norm of gradients that no rank has all of: each rank's own to the power, summed over ranks, and its root."""

from math import inf

import torch.distributed as dist
from torch import Tensor


def norm_over_ranks(norm: Tensor, norm_type: float, group: dist.ProcessGroup | None) -> Tensor:
    """From the norm of this rank's shards, a scalar, that of every rank's together, the same on all of them.

    Shards must not overlap: a parameter that two ranks hold would count twice.
    Sends: one all_reduce of one element.
    Source: torch.nn.utils.clip_grad_norm_ on DTensors; torch.distributed.fsdp.FullyShardedDataParallel.clip_grad_norm_.
    """
    if norm_type == inf:
        norm = norm.clone()
        dist.all_reduce(norm, dist.ReduceOp.MAX, group=group)
        return norm
    power = norm**norm_type
    dist.all_reduce(power, group=group)
    return power ** (1 / norm_type)
