"""The five setups in closed form, with a weight for each term: what is predicted by someone who forgets or doubles one.

Only mistakes are named by it. What is right is decided by bytes that were measured.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from grading.checks.lab1_memory.programs import Setup


@dataclass(frozen=True)
class Weights:
    """What each term is multiplied by: 1 is right."""

    parameters: float = 1.0  # as held between steps
    moments: float = 1.0
    buckets: float = 1.0  # of DDP
    beside: float = 1.0  # DDP without views: gradients beside the buckets
    beside_views: float = 0.0  # and with them
    gradients: float = 1.0  # as they are held when they are complete
    left_over: float = 0.0  # gradients between steps
    kept: float = 1.0  # what autograd keeps of blocks
    working: float = 1.0  # gradients of activations in a block
    head: float = 1.0  # the last norm, the logits and their gradients
    root: float = 1.0  # whole: FSDP's
    blocks: float = 1.0  # whole: the ones at work and on their way
    reducing: float = 1.0  # whole gradients on their way
    every_block_whole: bool = False  # as if all were gathered at once


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
    """In words."""
    moments = _moments(program, s, Weights())
    return max(moments, key=moments.get)


def _moments(program: str, s: Setup, w: Weights) -> dict[str, float]:
    """Bytes beyond what is resident."""
    return (_sharded if program.startswith("fsdp") else _replicated)(program, s, w)


def _left_over(program: str, s: Setup, w: Weights) -> float:
    return resident(program, s, w) - resident(program, s, _replaced(w, left_over=0.0))


def _fullest_share(s: Setup) -> int:
    """Elements, where whole parameters are dealt out: the largest first, each to the rank that has least."""
    block = 2 * [s.D * s.D] + 2 * [s.D * s.K * s.E] + 3 * [s.D * s.F] + 2 * [s.D]
    ranks = Counter(dict.fromkeys(range(s.N), 0))
    for numel in sorted([*s.L * block, s.V * s.D, s.V * s.D, s.D], reverse=True):
        ranks[min(ranks, key=ranks.get)] += numel
    return max(ranks.values())


def _head(s: Setup) -> int:
    """At the loss: 3 B T V in fp32, and what the last norm keeps."""
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
