"""Compare the gradients with the truth, which the referee computes in one process; if they are wrong, name the mistake.

Gradients are linear in the contributions of ranks and micro-batches, so every usual mistake is another linear
combination of the same parts.
"""

from dataclasses import dataclass

import torch

from grading.checks.lab2_ddp import on_ranks
from grading.judge.session import Session
from grading.judge.tensor_projections import distance, factor, parallel, project, project_cheaply, vector
from grading.judge.verdict import Verdict

TOLERANCE = 1e-3  # relative; summing float32 in another order gives about 1e-6, every mistake more than 1e-2


def judge(s: Session, check: str, points: float) -> Verdict:
    tied = bool(s.seed % 2)
    replies = s.order(check, "gradients", seed=s.seed, cap_mb=on_ranks.cap_mb(s.seed), tied=tied)
    truth = truth_of(on_ranks.gradients, s.seed, s.tier.world_size, tied=tied)
    mine = [vector(r) for r in replies]
    error = max(distance(v, truth.right) for v in mine)
    figures = {"relative error of the gradients": (f"{error:.1e}", f"{TOLERANCE:g}")}
    if error <= TOLERANCE:
        return Verdict(check, points, points, "every rank has the mean gradient over all valid tokens.", "", figures)
    return Verdict(check, 0, points, _diagnosis(mine, truth), "", figures)


@dataclass
class Truth:
    """Projected gradients of the loss sum of each rank's micro-batches, and their numbers of tokens."""

    sums: list[list[torch.Tensor]]  # [rank][micro-batch]
    tokens: list[list[int]]
    tokens_before: int  # all ranks' tokens in the step before

    @property
    def total(self) -> int:
        return sum(map(sum, self.tokens))

    @property
    def right(self) -> torch.Tensor:
        return sum(g for rank in self.sums for g in rank) / self.total

    @property
    def mean_of_rank_means(self) -> torch.Tensor:
        means = [sum(gs) / max(1, sum(ns)) for gs, ns in zip(self.sums, self.tokens, strict=True)]
        return torch.stack(means).mean(0)

    @property
    def mean_of_all_means(self) -> torch.Tensor:
        pairs = [zip(gs, ns, strict=True) for gs, ns in zip(self.sums, self.tokens, strict=True)]
        return torch.stack([g / max(1, n) for pair in pairs for g, n in pair]).mean(0)

    @property
    def last_micro_batch(self) -> torch.Tensor:
        return sum(gs[-1] for gs in self.sums)

    def local(self, rank: int) -> torch.Tensor:
        return sum(self.sums[rank])


def truth_of(drill, seed: int, world_size: int, *, tied: bool = False, tier: str = "cpu") -> Truth:
    """Compute each rank's micro-batches of a drill's last step, one by one in this process, with rank 0's weights.

    `tier`: of a lap, whose model depends on it.
    """
    is_lap = drill is on_ranks.laps
    shape, projection = (on_ranks.lap_shape(tier), project_cheaply) if is_lap else (on_ranks.GRADIENT_SHAPE, project)
    model_seed = 0 if is_lap else seed
    model = on_ranks.build(model_seed, 0, shape["n_layers"], tied, frozen=not is_lap, size=shape.get("size", "1M"))
    steps_before = [on_ranks.micro_batches(seed, 0, rank, world_size, shape) for rank in range(world_size)]
    truth = Truth([], [], sum(int((t != on_ranks.IGNORED).sum()) for batches in steps_before for _, t in batches))
    for rank in range(world_size):
        truth.sums.append([])
        truth.tokens.append([])
        for batch in on_ranks.micro_batches(seed, 1, rank, world_size, shape):
            model.zero_grad()
            loss_sum, n_tokens = on_ranks.token_loss(model, *batch)
            loss_sum.backward()
            truth.sums[-1].append(vector(projection(on_ranks.gradients_of(model), seed)))
            truth.tokens[-1].append(int(n_tokens))
    return truth


def _diagnosis(mine: list[torch.Tensor], truth: Truth) -> str:
    first = mine[0]
    if any(v.shape != truth.right.shape for v in mine):
        return "some parameters have no gradient, or one that should not exist (a frozen parameter keeps grad=None)."
    if not all(torch.isfinite(v).all() for v in mine):
        return (
            "a gradient is not finite: a rank may have no valid token in a micro-batch, so never divide by its count."
        )
    if all(parallel(v, truth.local(r), TOLERANCE) for r, v in enumerate(mine)):
        return "every rank still has its own gradient: nothing was exchanged."
    if max(distance(v, first) for v in mine) > TOLERANCE:
        return (
            "the ranks ended with different gradients: some were not reduced, or ranks started from different weights."
        )
    if parallel(first, truth.right, TOLERANCE):
        return _wrong_factor(factor(first, truth.right), truth)
    if parallel(first, truth.mean_of_rank_means, TOLERANCE) or parallel(first, truth.mean_of_all_means, TOLERANCE):
        return (
            "ranks or micro-batches with few valid tokens weigh as much as full ones: a mean of means is not the mean."
        )
    if parallel(first, truth.last_micro_batch, TOLERANCE):
        return "only the last micro-batch counts: what no_sync accumulated is lost."
    return "the gradients differ from the mean over all valid tokens of all ranks and micro-batches."


def _wrong_factor(wrong: float, truth: Truth) -> str:
    n, n_tokens = len(truth.sums), truth.total
    known = {
        n_tokens: ", the number of valid tokens: summed but never divided by it",
        n_tokens / n: ": averaged over ranks, but not divided by the tokens",
        n: ", the number of ranks",
        1 / n: ", one over the number of ranks: divided twice",
        n_tokens / (n_tokens + truth.tokens_before): ": the tokens of the step before are still counted",
    }
    name = next((words for f, words in known.items() if abs(wrong / f - 1) < 0.01), "")
    size = f"{wrong:.4g} times too large" if wrong > 1 else f"{wrong:.4g} times as large as they should be"
    return f"the gradients point the right way but are {size}{name}."
