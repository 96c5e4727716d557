"""Judge whether the repaired program computes the same: its losses and its weights' moves in two steps.

They are compared with one process that trains the whole model. The first step's move is linear in the gradients, so
usual mistakes can be named.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from grading.checks.lab6_profile import on_ranks
from grading.judge.session import Session
from grading.judge.tensor_projections import distance, factor, parallel, project, vector
from grading.judge.verdict import Verdict

TOLERANCE = 1e-3


def judge(s: Session, check: str, points: float) -> Verdict:
    shape = {"n_layers": 2 + s.seed % 3, "n_micro_batches": 3 + s.seed % 4}
    replies = s.order(
        check, "steps", world_size=on_ranks.WORLD_SIZE, device="cpu", network="infinitely fast", seed=s.seed, **shape
    )
    truth = truth_of(s.seed, **shape)
    moved = [[vector(step["moved"]) for step in rank] for rank in replies]
    error = max(distance(v, right) for rank in moved for v, right in zip(rank, truth.moved, strict=True))
    losses = [abs(step["loss"] - right) for rank in replies for step, right in zip(rank, truth.losses, strict=True)]
    loss_error = max(losses) if all(x == x for x in losses) else float("inf")
    figures = {
        "how the weights moved, relative error": (f"{error:.1e}", f"{TOLERANCE:g}"),
        "loss that train_step returned, error": (f"{loss_error:.1e}", f"{TOLERANCE:g}"),
    }
    if error > TOLERANCE:
        return Verdict(check, 0, points, _diagnosis(moved, truth, parts_of(s.seed, **shape)), "", figures)
    if loss_error > TOLERANCE:
        cause = "the weights are right, but the loss is not the mean over all ranks and micro-batches."
        return Verdict(check, points / 2, points, cause, "", figures)
    return Verdict(check, points, points, "losses and weights are those of the program before.", "", figures)


@dataclass
class Truth:
    moved: list[Tensor]  # one for each step
    losses: list[float]


@dataclass
class Parts:
    """Parts of the first step's move."""

    moves: list[list[Tensor]]  # [rank][micro-batch]: the move that its loss alone would make, projected
    thinned: Tensor  # the whole move with each shard replaced by the mean of all shards

    @property
    def n_micro_batches(self) -> int:
        return len(self.moves[0])

    def only(self, rank: int | None = None, micro_batch: int | None = None) -> Tensor:
        """Return the sum of the moves of one rank, of one micro-batch, or of both; None means all."""
        ranks = self.moves if rank is None else [self.moves[rank]]
        return sum(g for moves in ranks for m, g in enumerate(moves) if micro_batch in (None, m))


def truth_of(seed: int, n_layers: int, n_micro_batches: int) -> Truth:
    model = on_ranks.make_model(seed, n_layers)
    optimizer, truth = on_ranks.make_optimizer(model), Truth([], [])
    for step in range(2):
        before = on_ranks.whole(model)
        optimizer.zero_grad()
        losses = []
        for rank in range(on_ranks.WORLD_SIZE):
            for batch in on_ranks.batches(seed, step, rank, n_micro_batches):
                losses.append(model(*batch) / (on_ranks.WORLD_SIZE * n_micro_batches))
                losses[-1].backward()
        optimizer.step()
        after = on_ranks.whole(model)
        truth.moved.append(vector(project([(k, after[k] - before[k]) for k in after], seed)))
        truth.losses.append(sum(loss.item() for loss in losses))
    return truth


def parts_of(seed: int, n_layers: int, n_micro_batches: int) -> Parts:
    model, n = on_ranks.make_model(seed, n_layers), on_ranks.WORLD_SIZE
    params, moves = list(model.parameters()), []
    total = [torch.zeros_like(p) for p in params]
    for rank in range(n):
        moves.append([])
        for batch in on_ranks.batches(seed, 0, rank, n_micro_batches):
            grads = torch.autograd.grad(model(*batch) / (n * n_micro_batches), params)
            total = [t + g for t, g in zip(total, grads, strict=True)]
            moves[-1].append(_moves(model, grads, seed))
    return Parts(moves, _moves(model, [_thinned(t, n) for t in total], seed))


def _moves(model, grads, seed: int) -> Tensor:
    named = zip(model.named_parameters(), grads, strict=True)
    return vector(project([(name, -0.1 * g) for (name, _), g in named], seed))


def _thinned(g: Tensor, n: int) -> Tensor:
    mean = torch.stack(g.chunk(n)).mean(0)
    return mean.repeat(n, *[1] * (g.ndim - 1))


def _diagnosis(moved: list[list[Tensor]], truth: Truth, parts: Parts) -> str:
    first, right, n = moved[0][0], truth.moved[0], on_ranks.WORLD_SIZE
    if not all(torch.isfinite(v).all() for rank in moved for v in rank):
        return "the weights are not finite after two steps."
    if float(first.norm()) == 0:
        return (
            "the weights do not move: no gradient reached the optimizer, since reduction is never switched on again, "
            "or it moved shards, and the model still reads whole copies that were never freed."
        )
    if max(distance(rank[0], first) for rank in moved) > TOLERANCE:
        return "the ranks ended with different weights: gradients were not reduced over all of them."
    if distance(first, right) <= TOLERANCE:
        return "the first step is right and the second is not: something of the first step's gradients is left over."
    if parallel(first, right, TOLERANCE):
        return _wrong_factor(factor(first, right), parts.n_micro_batches)
    if parallel(first, parts.thinned, TOLERANCE):
        return (
            "gradients are reduced twice: FSDP has reduced them already, and each rank holds other rows, so a second "
            "reduction mixes rows that have nothing to do with each other."
        )
    for m in range(parts.n_micro_batches):
        one = parts.only(micro_batch=m)
        if parallel(first, one, TOLERANCE):
            return f"of {parts.n_micro_batches} micro-batches only number {m} counts: the others are lost or skipped."
        if parallel(first, parts.only() - one, TOLERANCE):
            return f"micro-batch {m} of {parts.n_micro_batches} does not count."
    if any(parallel(first, parts.only(rank=rank), TOLERANCE) for rank in range(n)):
        return "only one rank's micro-batches count: gradients were not reduced over all ranks."
    return "the weights do not move as those of the program before."


def _wrong_factor(times: float, m: int) -> str:
    n = on_ranks.WORLD_SIZE
    known = {m: ", the number of micro-batches", 1 / m: ", one over the number of micro-batches: divided twice"}
    known |= {1 / n: ", one over the number of ranks: FSDP has divided by it already", n: ", the number of ranks"}
    name = next((words for f, words in known.items() if abs(times / f - 1) < 0.01), "")
    return f"the weights move the right way but {times:.4g} times as far{name}."
