"""The most that a rank holds in a step: a closed form for each strategy, one term a line, and no more than torch holds.

The model is a chain of L blocks of B bytes each, with activations that hardly count. Where there are buckets, a bucket
is two blocks. FSDP's own layout, per parameter, is in test_fsdp.py.
"""

from functools import partial

import pytest
import torch
import torch.distributed.fsdp
from sharding import Chain, memory
from torch import nn
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn.parallel import DistributedDataParallel

from shardlab import fsdp, launch
from shardlab.ddp import DDP
from shardlab.zero import ShardedDataParallel, ZeroRedundancyOptimizer

L, B = 6, 256 * 256 * 4
CAP_MB = 2 * B / 2**20


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def peak(wrapped: nn.Module, optimizer=None) -> int:
    return memory(wrapped, lambda model: model(torch.ones(2, 256, requires_grad=True)), optimizer)["peak"]


def zero(stage: int) -> int:
    model = Chain()
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, bucket_cap_mb=CAP_MB, lr=0.1)
    return peak(model if stage == 1 else ShardedDataParallel(model, optimizer), optimizer)


def ddp(wrap, views: bool) -> int:
    return peak(wrap(Chain(), bucket_cap_mb=CAP_MB, gradient_as_bucket_view=views))


def flat(strategy: str) -> int:
    model, reshards = Chain(), {"FULL_SHARD": None, "SHARD_GRAD_OP": False}[strategy]
    for linear in [m for m in model.modules() if isinstance(m, nn.Linear)]:
        fsdp.fully_shard(linear, reshard_after_forward=reshards, layout=fsdp.FlatParameter)
    return peak(fsdp.fully_shard(model, reshard_after_forward=reshards, layout=fsdp.FlatParameter))


def torchs_fsdp1(strategy: str) -> int:
    options = {"auto_wrap_policy": ModuleWrapPolicy({nn.Linear}), "device_id": torch.device("cpu")}
    strategy = torch.distributed.fsdp.ShardingStrategy[strategy]
    return peak(torch.distributed.fsdp.FullyShardedDataParallel(Chain(), sharding_strategy=strategy, **options))


OURS = {
    "DDP": partial(ddp, DDP, False),
    "DDP, views": partial(ddp, DDP, True),
    "ZeRO-1": partial(zero, 1),
    "ZeRO-2": partial(zero, 2),
    "flat FULL_SHARD": partial(flat, "FULL_SHARD"),
    "flat SHARD_GRAD_OP": partial(flat, "SHARD_GRAD_OP"),
}
TORCHS = {
    "DDP": partial(ddp, DistributedDataParallel, False),
    "DDP, views": partial(ddp, DistributedDataParallel, True),
    "flat FULL_SHARD": partial(torchs_fsdp1, "FULL_SHARD"),
    "flat SHARD_GRAD_OP": partial(torchs_fsdp1, "SHARD_GRAD_OP"),
}


def closed_form(n: int) -> dict[str, float]:
    """Of each strategy on n ranks, in blocks."""
    bucket = 2
    full_shard = (  # while backward computes the second block
        L / n  # sharded parameters
        + (L - 3) / n  # sharded gradients of the blocks behind the next two
        + 1 + 1 / n  # the third block's gradients on their way: reduce_scatter_input and output
        + 1 + 1  # its own parameters and gradients, whole
        + 1  # the first block's parameters on their way
    )  # fmt: skip
    shard_grad_op = (  # while backward computes the last block but one
        L / n  # sharded parameters
        + (L - 1)  # whole ones, but the last block's
        + 1 + 1 / n  # the last block's gradients on their way
        + 1  # its own gradients, whole
    )  # fmt: skip
    zero_1 = (  # in the step, when the second bucket begins to fill
        L  # parameters
        + (L - bucket)  # gradients, but the first bucket's
        + bucket + bucket / n  # the first bucket's on their way
        + bucket  # the second
    )  # fmt: skip
    zero_2 = (  # when backward has made the first block's gradient, its last
        L  # parameters
        + (L / bucket - 1) * bucket / n  # the owner's slices of all buckets but the last
        + bucket  # the last but one on its way
        + bucket  # the last, which fills
        + 1  # the gradient itself
    )
    return {
        "DDP": L + L + L,  # parameters, gradients, buckets
        "DDP, views": L + L + 1,  # parameters, gradients in the buckets, the one that backward has just made
        "ZeRO-1": zero_1,
        "ZeRO-2": zero_2,
        "flat FULL_SHARD": full_shard,
        "flat SHARD_GRAD_OP": shard_grad_op,
    }


@pytest.mark.parametrize("world_size", [2, pytest.param(4, marks=pytest.mark.night)])
def test_peaks_are_the_closed_forms_and_at_most_torchs(world_size):
    """Within 2% for the form. For torch's, but for the gradients of two activations, 2 x 256 floats each."""

    def ranks():
        return {name: find() for name, find in OURS.items()}, {name: find() for name, find in TORCHS.items()}

    for ours, torchs in launch(ranks, world_size):
        for name, blocks in closed_form(world_size).items():
            assert ours[name] == pytest.approx(blocks * B, rel=0.02), name
        for name, n_bytes in torchs.items():
            assert ours[name] <= n_bytes + 2 * (2 * 256 * 4), name
