"""Units of a stage, blocks and the root: how often a step gathers and reduces each, and how many bytes that is."""

from shardplan.planned_job import Setup
from shardplan.stage_parameters import Stage, Weight

BLOCK, DENSE, ROOT = "a block", "a block without experts", "the root"


def units(stage: Stage) -> list[tuple[str, tuple[Weight, ...], int]]:
    """Return (name, weights, number of such units). A pipeline's middle stage has no root."""
    blocks = (BLOCK, stage.block, stage.n_blocks - stage.n_dense), (DENSE, stage.dense, stage.n_dense)
    found = (*blocks, (ROOT, stage.root, 1))
    return [unit for unit in found if unit[1] and unit[2]]


def gathers(setup: Setup, name: str) -> int:
    """Count a unit's all_gathers in a step: forward and backward of each micro-batch; the root stays from forward.

    A pipeline's stage that keeps parameters for backward keeps them for the whole step, and gathers them once.
    """
    s = setup.strategy
    if s.sharding == "SHARD_GRAD_OP":
        return 1 if s.pipeline > 1 else s.accumulation
    return s.accumulation * (1 if name == ROOT or s.wrap == "whole" else 2)


def reductions(setup: Setup) -> int:
    s = setup.strategy
    return 1 if s.accumulate_unsharded or s.sharding == "ZERO_1" else s.accumulation


def gathered_bytes(setup: Setup, weights: tuple[Weight, ...]) -> float:
    """Bytes of an unsharded unit, with the padding of dim 0."""
    n = setup.shards
    return sum(w.sent * w.padded_numel(n) for w in weights)


def gradient_bytes(setup: Setup, weights: tuple[Weight, ...]) -> float:
    """Bytes of the trained weights' unsharded gradients on the wire."""
    n = setup.shards if setup.strategy.sharded[0] else 1
    return sum(setup.strategy.bytes.reduce * w.padded_numel(n) for w in weights if w.trained)


def held_bytes(setup: Setup, weights: tuple[Weight, ...]) -> float:
    """Bytes of updated parameters, whole, as a rank holds them."""
    return sum(setup.strategy.bytes.parameters * w.numel for w in weights if w.trained)
