"""Train on the same samples in one process: torch's optimizer and torch's clipping, on the mean gradient.

The usual mistakes are simulated too, so that a wrong answer can be named.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_

from grading.checks.lab3_zero import on_ranks
from grading.checks.lab3_zero.owner_rule import owned
from grading.checks.one_thread import one_thread
from grading.judge.tensor_projections import vector
from shardlab.ddp import assign_buckets

Gradients = list[list[Tensor]]  # [rank][micro-batch]; each holds all parameters' gradients, flat


class Setting(NamedTuple):
    """The drawn arguments of a drill `train`."""

    seed: int
    cap_mb: float
    shares: tuple[int, ...]
    optimizer: str
    max_norm: float
    plan: tuple[on_ranks.PlannedStep, ...]


class Step(NamedTuple):
    norm: float
    change: Tensor  # of the weights since the start, projected
    still: dict[str, int]  # unchanged elements since the start, by parameter


def mean_over_ranks(gradients: Gradients) -> Tensor:
    return sum(sum(rank) for rank in gradients) / len(gradients)


def clip(module: nn.Module, norm: Tensor, setting: Setting) -> None:
    clip_grads_with_norm_(module.parameters(), setting.max_norm, norm)


@lru_cache(maxsize=64)
def simulate(
    setting: Setting,
    combine: Callable[[Gradients], Tensor] = mean_over_ranks,
    clip: Callable[[nn.Module, Tensor, Setting], None] = clip,
) -> list[Step]:
    """Simulate every step of a plan without poison."""
    with one_thread():
        return _simulate(setting, combine, clip)


def _simulate(setting: Setting, combine: Callable, clip: Callable) -> list[Step]:
    module = on_ranks.build(setting.seed, on_ranks.SMALL)
    start = [p.detach().clone() for p in module.parameters()]
    optimizer_class, defaults = on_ranks.OPTIMIZERS[setting.optimizer]
    optimizer = optimizer_class(module.parameters(), **defaults)
    steps, number = [], 0
    for step in setting.plan:
        _set_gradient(module, combine(gradients_of(module, setting, step, number)))
        norm = nn.utils.get_total_norm([p.grad for p in module.parameters()])
        clip(module, norm, setting)
        optimizer.step()
        number += step.micro_batches
        weights = [(name, p.detach()) for name, p in module.named_parameters()]
        seen = on_ranks.report(weights, start, setting.seed)
        steps.append(Step(float(norm), vector(seen["change"]), seen["still"]))
    return steps


def gradients_of(module: nn.Module, setting: Setting, step: on_ranks.PlannedStep, number: int) -> Gradients:
    n, k = len(setting.shares), step.micro_batches
    found: Gradients = [[] for _ in range(n)]
    for rank in range(n):
        for i in range(k):
            module.zero_grad()
            tokens, targets = on_ranks.samples(setting.seed, number + i, rank, n, on_ranks.SMALL_SEQ_LEN)
            (step.scale / k * module(tokens, targets)).backward()
            found[rank].append(torch.cat([p.grad.flatten() for p in module.parameters()]))
    return found


def _set_gradient(module: nn.Module, flat: Tensor) -> None:
    parts = flat.split([p.numel() for p in module.parameters()])
    for p, part in zip(module.parameters(), parts, strict=True):
        p.grad = part.view_as(p).clone()


# Mistakes in the sum

COMBINED_WRONGLY: dict[str, Callable[[Gradients], Tensor]] = {
    "the gradients were summed over ranks and not divided by their number.": lambda g: sum(map(sum, g)),
    "the gradients were divided by the number of ranks twice.": lambda g: mean_over_ranks(g) / len(g),
    "nothing was exchanged: the update is made of rank 0's own gradients.": lambda g: sum(g[0]),
    "only the last micro-batch counts: slices that arrive must be added to those of earlier micro-batches.": (
        lambda g: mean_over_ranks([rank[-1:] for rank in g])
    ),
    "only the first micro-batch counts.": lambda g: mean_over_ranks([rank[:1] for rank in g]),
    "the first micro-batch counts twice: its gradient was still there, or was sent again, with the second.": (
        lambda g: mean_over_ranks([[*rank, *rank[:-1]] for rank in g])
    ),
    "the mean over micro-batches was taken once more: the loss that `backward` gets is divided already.": (
        lambda g: mean_over_ranks(g) / len(g[0])
    ),
}


# Mistakes in clipping

SPARE = 1e-6  # as torch.nn.utils.clip_grad_norm_ adds it: as much as a tiny gradient's norm


def never(module: nn.Module, norm: Tensor, setting: Setting) -> None:
    pass


def always(module: nn.Module, norm: Tensor, setting: Setting) -> None:
    for p in module.parameters():
        p.grad *= setting.max_norm / (norm + SPARE)


def by_own_norm(module: nn.Module, norm: Tensor, setting: Setting) -> None:
    """Clip each owner's slices by the norm of these slices only."""
    for slices in _owned_gradients(module, setting):
        own = float(torch.cat([grad[mask] for grad, mask in slices]).norm())
        for grad, mask in slices:
            grad[mask] *= min(1.0, setting.max_norm / (own + SPARE))


def by_sum_of_norms(module: nn.Module, norm: Tensor, setting: Setting) -> None:
    slices = _owned_gradients(module, setting)
    norms = [torch.cat([grad[mask] for grad, mask in theirs]).norm() for theirs in slices]
    for p in module.parameters():
        p.grad *= min(1.0, setting.max_norm / (float(sum(norms)) + SPARE))


def _owned_gradients(module: nn.Module, setting: Setting) -> list[list[tuple[Tensor, Tensor]]]:
    """Return, for each rank, all gradients, flat, each with the mask of the elements that the rank owns."""
    cap_bytes = int(setting.cap_mb * on_ranks.MIB)
    owner = {p: torch.zeros(p.numel(), dtype=torch.long) for p in module.parameters()}
    for bucket in assign_buckets(list(module.parameters()), cap_bytes, cap_bytes):
        for rank in range(len(setting.shares)):
            for i, start, end in owned([p.numel() for p in bucket], setting.shares, rank):
                owner[bucket[i]][start:end] = rank
    return [[(p.grad.view(-1), owner[p] == rank) for p in owner] for rank in range(len(setting.shares))]


CLIPPED_WRONGLY = {
    "the gradients were never clipped.": never,
    "the gradients were scaled to max_norm where their norm is smaller, too.": always,
    "every rank clipped by the norm of its own slices: the update points elsewhere than the gradient.": by_own_norm,
    "it was clipped by the sum of the ranks' norms: squares add up, norms do not.": by_sum_of_norms,
}
