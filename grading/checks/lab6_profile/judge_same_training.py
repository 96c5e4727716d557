"""Judge whether the repaired program computes the same: its losses and its weights' moves in some steps.

They are compared with one process that trains the whole model. The first step's move is linear in the gradients, so
usual mistakes can be named.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from grading.checks.errors_with_nan import largest
from grading.checks.lab6_profile import on_ranks
from grading.checks.one_thread import one_thread
from grading.judge.session import Session
from grading.judge.tensor_projections import distance, factor, parallel, project, vector
from grading.judge.verdict import Verdict

TOLERANCE = 2e-5  # right programs differ by 1e-6; gradients sent as fp16 by 1e-4
LOSS_TOLERANCE = 1e-4  # right ones differ by 5e-7


def judge(s: Session, check: str, points: float) -> Verdict:
    error = loss_error = 0.0
    place = {"world_size": on_ranks.WORLD_SIZE, "device": "cpu", "network": "infinitely fast"}
    for shape in shapes_of(s.seed):
        replies = s.order(check, "steps", **place, seed=s.seed, **shape)
        truth = truth_of(s.seed, **shape)
        moved = [[vector(step["moved"]) for step in rank] for rank in replies]
        error = max(error, *(_furthest(rank, truth.moved) for rank in moved))
        losses = [[step["loss"] for step in rank] for rank in replies]
        loss_error = max(loss_error, *(_off(rank, truth.losses) for rank in losses))
        figures = {
            "how the weights moved, relative error": (f"{error:.1e}", f"{TOLERANCE:g}"),
            "loss that train_step returned, error": (f"{loss_error:.1e}", f"{LOSS_TOLERANCE:g}"),
        }
        if error > TOLERANCE:
            cause = f"with {_in_words(**shape)}, {_diagnosis(replies, moved, truth, s.seed, shape)}"
            return Verdict(check, 0, points, cause, "", figures)
    if loss_error > LOSS_TOLERANCE:
        cause = f"the weights are right, but the loss is not the mean over all ranks and micro-batches: {_of(losses)}."
        return Verdict(check, points / 2, points, cause, "", figures)
    return Verdict(check, points, points, "losses and weights are those of the program before.", "", figures)


def shapes_of(seed: int) -> list[dict]:
    """Return two models, and the number of micro-batches in each of their steps: not that of the ranks, and one."""
    m = (2, 3, 5, 6)[seed % 4]
    return [
        {"n_layers": 1 + seed % 3, "lengths": [m, 1, 7 - m]},
        {"n_layers": 5 + seed % 2, "lengths": [1, m]},
    ]


def _in_words(n_layers: int, lengths: list[int]) -> str:
    blocks = "1 block" if n_layers == 1 else f"{n_layers} blocks"
    return f"{blocks} and lists of {', then '.join(map(str, lengths))} micro-batches"


def _furthest(moved: list[Tensor], right: list[Tensor]) -> float:
    return max(distance(v, r) for v, r in zip(moved, right, strict=True))


def _off(losses: list[float], right: list[float]) -> float:
    return largest(abs(loss - r) for loss, r in zip(losses, right, strict=True))


def _of(losses: list[list[float]]) -> str:
    """Return what the ranks returned in the last step."""
    return "the ranks returned " + ", ".join(f"{rank[-1]:.4f}" for rank in losses)


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


@one_thread()
def truth_of(seed: int, n_layers: int, lengths: list[int], kept: bool = False) -> Truth:
    """Return what one process finds. `kept`: gradients are never set to None, so that they add up over steps."""
    model = on_ranks.make_model(seed, n_layers)
    optimizer, truth = on_ranks.make_optimizer(model), Truth([], [])
    for step, n_micro_batches in enumerate(lengths):
        before = on_ranks.whole(model)
        if not kept:
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


@one_thread()
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


def _diagnosis(replies: list, moved: list[list[Tensor]], truth: Truth, seed: int, shape: dict) -> str:
    first, right, n = moved[0][0], truth.moved[0], on_ranks.WORLD_SIZE
    if not all(torch.isfinite(v).all() for rank in moved for v in rank):
        return "the weights are not finite."
    if float(first.norm()) == 0:
        return f"the weights do not move: {_at_the_optimizer(replies)}."
    if max(distance(rank[0], first) for rank in moved) > TOLERANCE:
        return "the ranks have different weights after the first step."
    if distance(first, right) <= TOLERANCE:
        return _later(moved, truth, seed, shape)
    parts = parts_of(seed, shape["n_layers"], shape["lengths"][0])
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
    return f"the weights do not move as before: they are off by {distance(first, right):.1e} of the first step's move."


def _at_the_optimizer(replies: list) -> str:
    """Return what the optimizer found in the first step."""
    steps = replies[0][0]["with_gradient"]
    if not steps:
        return "the optimizer makes no step"
    if not any(steps):
        return "no parameter has a gradient when the optimizer makes its step"
    return (
        f"{max(steps)} parameters have gradients when the optimizer makes its step, but those that the model reads stay"
    )


def _later(moved: list[list[Tensor]], truth: Truth, seed: int, shape: dict) -> str:
    """Return what is wrong with the first wrong step, which is not the first one."""
    wrong = [[distance(v, r) > TOLERANCE for v, r in zip(rank, truth.moved, strict=True)] for rank in moved]
    step = min(flags.index(True) for flags in wrong if any(flags))
    if distance(moved[0][step], truth_of(seed, **shape, kept=True).moved[step]) <= TOLERANCE:
        return f"step {step + 1} is wrong: the gradients of the steps before are still in it."
    if max(distance(rank[step], moved[0][step]) for rank in moved) > TOLERANCE:
        return f"the ranks have different weights after step {step + 1}."
    if float(moved[0][step].norm()) == 0:
        return f"the weights do not move in step {step + 1}."
    return f"the steps before are right, and step {step + 1}, of {shape['lengths'][step]} micro-batches, is not."


def _wrong_factor(times: float, m: int) -> str:
    n = on_ranks.WORLD_SIZE
    known = {m: "the number of micro-batches", 1 / m: "one over the number of micro-batches"}
    known |= {n: "the number of ranks", 1 / n: "one over the number of ranks; FSDP itself averages over ranks"}
    name = next((words for f, words in known.items() if abs(times / f - 1) < 0.01), "")
    return f"the weights move the right way but {times:.4g} times as far{name and ', ' + name}."
