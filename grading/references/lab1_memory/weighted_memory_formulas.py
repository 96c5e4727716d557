"""The five setups of lab 1 in closed form, with a weight for each term: predictions that forget or double a term.

The formulas only name mistakes. Measured bytes decide what is right.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from grading.checks.lab1_memory.programs import Setup


@dataclass(frozen=True)
class Weights:
    """Factor of each term; the defaults are right."""

    parameters: float = 1.0  # as held between steps
    moments: float = 1.0
    buckets: float = 1.0  # DDP's
    beside: float = 1.0  # DDP without views: gradients outside the buckets
    beside_views: float = 0.0  # DDP with views: gradients outside the buckets
    gradients: float = 1.0  # when they are complete
    left_over: float = 0.0  # gradients held between steps
    kept: float = 1.0  # what autograd saves of blocks
    working: float = 1.0  # gradients of activations in a block
    head: float = 1.0  # the last norm, the logits and their gradients
    root: float = 1.0  # the root's whole parameters, under FSDP
    blocks: float = 1.0  # whole parameters of the blocks that compute or are being gathered
    reducing: float = 1.0  # whole gradients that are being reduced
    every_block_whole: bool = False  # as if all blocks were gathered at once


def block_params(s: Setup) -> int:
    return 2 * s.D * s.D + 2 * s.D * s.K * s.E + 3 * s.D * s.F + 2 * s.D


def root_params(s: Setup) -> int:
    return 2 * s.V * s.D + s.D


def kept_bytes(s: Setup) -> int:
    return 4 * s.B * s.T * (8 * s.D + 2 * s.K * s.E + 4 * s.F + s.H + 2)


def resident(program: str, s: Setup, w: Weights) -> float:
    n_params = s.L * block_params(s) + root_params(s)
    shards = s.N if program.startswith("fsdp") else 1
    moments = 8 * _fullest_share(s) if program == "zero1" else 8 * n_params / shards
    n_bytes = w.parameters * 4 * n_params / shards + w.moments * moments + 16 * s.B * s.T
    if program in ("ddp", "zero1"):
        return n_bytes + w.buckets * 4 * n_params
    return n_bytes + w.left_over * 4 * n_params / shards


def peak(program: str, s: Setup, w: Weights) -> float:
    return resident(program, s, w) - _left_over(program, s, w) + max(_moments(program, s, w).values())


def fullest_moment(program: str, s: Setup) -> str:
    """Return the moment of the peak, in words."""
    moments = _moments(program, s, Weights())
    return max(moments, key=moments.get)


def _moments(program: str, s: Setup, w: Weights) -> dict[str, float]:
    """Return the bytes beyond the resident ones, by moment."""
    return (_sharded if program.startswith("fsdp") else _replicated)(program, s, w)


def _left_over(program: str, s: Setup, w: Weights) -> float:
    return resident(program, s, w) - resident(program, s, _replaced(w, left_over=0.0))


def _fullest_share(s: Setup) -> int:
    """Return the elements of the fullest rank if whole parameters go, largest first, to the emptiest rank."""
    block = 2 * [s.D * s.D] + 2 * [s.D * s.K * s.E] + 3 * [s.D * s.F] + 2 * [s.D]
    ranks = Counter(dict.fromkeys(range(s.N), 0))
    for numel in sorted([*s.L * block, s.V * s.D, s.V * s.D, s.D], reverse=True):
        ranks[min(ranks, key=ranks.get)] += numel
    return max(ranks.values())


def _head(s: Setup) -> int:
    """Return the bytes at the loss: 3 B T V numbers in fp32, and what the last norm saves."""
    return 12 * s.B * s.T * (s.V + s.D)


def _working(s: Setup, each: int) -> int:
    return each * s.B * s.T * (2 * s.F + s.D)


def _replicated(program: str, s: Setup, w: Weights) -> dict[str, float]:
    n_params = s.L * block_params(s) + root_params(s)
    beside = w.beside * w.gradients if program == "ddp" and not s.views else w.beside_views
    apart = w.gradients if program == "one_rank" else beside
    kept, working, down = w.kept * kept_bytes(s), w.working * _working(s, 4), s.D * s.F
    return {
        "at the loss": s.L * kept + w.head * _head(s),
        "in the last block's backward": s.L * kept + working + apart * 4 * (s.V * s.D + down),
        "in the first block's backward": kept + working + apart * 4 * (n_params - s.V * s.D - block_params(s) + down),
        "when backward is through": apart * 4 * n_params,
    }


def _sharded(program: str, s: Setup, w: Weights) -> dict[str, float]:
    if program == "fsdp":
        each, kept, again = 4, kept_bytes(s), 0
    else:
        each, kept = 2, 2 * s.B * s.T * s.D + 2 * s.T * s.E
        again = s.B * s.T * (28 * s.D + 4 * s.K * s.E + 8 * s.F + 4 * s.H + 8)
    block = block_params(s)
    whole = each * w.root * root_params(s)
    gathered = (lambda at, ahead: s.L) if w.every_block_whole else _gathered(s)
    at_loss = whole + each * w.blocks * block * gathered(s.L, 1) + s.L * w.kept * kept + w.head * _head(s)
    moments = {"at the loss": at_loss}
    for i in range(s.L, 0, -1):
        gradients = w.gradients * 4 * (s.L - i) * block / s.N
        reducing = w.reducing * (each * s.V * s.D + each * s.D * s.F + (4 * block if i < s.L else 0))
        activations = w.kept * (i * kept + again) + w.working * _working(s, each)
        here = each * w.blocks * block * (gathered(i, 2) if i > 1 else gathered(i, 1))
        moments[f"in the backward of block {i} of {s.L}"] = whole + here + gradients + reducing + activations
    return moments


def _gathered(s: Setup) -> Callable[[int, int], int]:
    return (lambda at, ahead: ahead) if s.reshard else (lambda at, ahead: at)


def _replaced(w: Weights, **changes) -> Weights:
    return Weights(**vars(w) | changes)
