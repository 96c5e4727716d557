"""References of lab 5: training in float32, recomputation by the plan, and the best plan."""

from functools import partial

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import CheckpointPolicy

from shardlab.recompute import checkpoint, create_selective_checkpoint_contexts

Blocks = list[dict[str, tuple[int, int]]]  # for each block: way -> (bytes, FLOPs)
WAYS = ("keep", "selective", "full")


def shard_in_float32(model: nn.Module) -> nn.Module:
    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


def shard_in_float32_only(model: nn.Module, blocks: Blocks, activation_bytes: int) -> nn.Module:
    """Return part 3's reference model: nothing is recomputed or rounded, whatever the budget."""
    return shard_in_float32(model)


def recompute(model: nn.Module, plan: list[str]) -> nn.Module:
    for block, way in zip(model.blocks, plan, strict=True):
        if way == "full":
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        elif way == "selective":
            contexts = partial(create_selective_checkpoint_contexts, _save_products)
            block.forward = partial(checkpoint, block.forward, use_reentrant=False, context_fn=contexts)
    return model


def _save_products(ctx, op, *args, **kwargs) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if op is torch.ops.aten.mm.default else CheckpointPolicy.PREFER_RECOMPUTE


def peak_of(plan: list[str], blocks: Blocks) -> int:
    """Return the most bytes of activations at once: one whole block, and what earlier blocks hold by their way."""
    held = peak = 0
    for way, block in zip(plan, blocks, strict=True):
        peak = max(peak, held + block["keep"][0])
        held += block[way][0]
    return peak


def flops_of(plan: list[str], blocks: Blocks) -> int:
    return sum(block[way][1] for way, block in zip(plan, blocks, strict=True))


def best_plan(blocks: Blocks, budget_bytes: int) -> list[str] | None:
    """Return a plan that fits with the fewest FLOPs; None if none fits.

    Goes block by block and keeps only partial plans that no other one beats in both bytes and FLOPs.
    """
    front = [(0, 0, [])]  # bytes held so far, FLOPs, ways
    for block in blocks:
        fitting = [entry for entry in front if entry[0] + block["keep"][0] <= budget_bytes]
        longer = [(h + block[w][0], f + block[w][1], [*ways, w]) for h, f, ways in fitting for w in WAYS]
        front, fewest = [], float("inf")
        for entry in sorted(longer):
            if entry[1] < fewest:
                front, fewest = [*front, entry], entry[1]
    return front[-1][2] if front else None
