"""Compare each parameter's gradient with the truth, which the referee computes in one process; name what is wrong.

Gradients are linear in the contributions of ranks and micro-batches, so every usual mistake is another linear
combination of the same parts.
"""

from dataclasses import dataclass

import torch

from grading.checks.lab2_ddp import on_ranks
from grading.judge.session import Session
from grading.judge.tensor_projections import distance, factor, project, vector
from grading.judge.verdict import Verdict

TOLERANCE = 1e-4  # relative, of each parameter; float32 in another order is 10 times closer, 16 bits are twice as far
SAME = 1e-3  # relative: so close to a mistake's gradients, they are that mistake's
SAME_WEIGHTS = 1e-5  # relative, of each parameter's projections


def judge(s: Session, check: str, points: float) -> Verdict:
    """Judge the weights, and every step's gradients of every parameter on every rank."""
    replies = s.order(check, "gradients", seed=s.seed, cap_mb=on_ranks.cap_mb(s.seed))
    world_size = s.tier.world_size
    weights = project(_model(s.seed, on_ranks.GRADIENT_SHAPE).named_parameters(), s.seed)
    if other := [rank for rank, r in enumerate(replies) if _wrong(r["weights"], weights, SAME_WEIGHTS)]:
        names = _some(_wrong(replies[other[0]]["weights"], weights, SAME_WEIGHTS))
        return Verdict(check, 0, points, f"rank {other[0]} does not have rank 0's weights: {names} differs.")
    worst, cause = 0.0, ""
    for step, count in enumerate(on_ranks.MICRO_BATCHES):
        truth = truth_of(s.seed, world_size, step=step)
        mine = [r["steps"][step] for r in replies]
        cause = cause or _named(mine, truth, f"in step {step + 1}, of {count} micro-batch{'es' * (count > 1)}, ")
        worst = max(worst, *(error for gradients in mine for error in truth.errors(gradients).values()))
    figures = {"largest relative error of a gradient": (f"{worst:.1e}", f"{TOLERANCE:g}")}
    if cause:
        return Verdict(check, 0, points, cause, "", figures)
    return Verdict(check, points, points, "every rank has the mean gradient over all valid tokens.", "", figures)


def _named(mine: list[dict], truth: "Truth", when: str) -> str:
    """Return which mistake the ranks' gradients of a step show, in words; "" if they are right."""
    if all(error <= TOLERANCE for gradients in mine for error in truth.errors(gradients).values()):
        return ""
    return when + _diagnosis(mine, truth)


@dataclass
class Truth:
    """Projected gradients of the loss sum of each rank's micro-batches, and their numbers of tokens."""

    names: list[str]  # of parameters with a gradient, in the order of the projections
    sums: list[list[torch.Tensor]]  # [rank][micro-batch]
    tokens: list[list[int]]
    tokens_before: int  # all ranks' tokens in the steps before
    positions: int  # all ranks' tokens, the padding too

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

    def errors(self, gradients: dict[str, list[float]]) -> dict[str, float]:
        """Return each parameter's relative error; infinite if it has a gradient only here, or only there."""
        due = dict(zip(self.names, self.right.view(len(self.names), -1), strict=True))
        return _errors(gradients, due)


def _errors(mine: dict[str, list[float]], due: dict) -> dict[str, float]:
    nothing = torch.zeros(0, dtype=torch.float64)
    pairs = {
        name: [torch.as_tensor(side.get(name, nothing), dtype=torch.float64) for side in (mine, due)]
        for name in sorted({*mine, *due})
    }
    return {name: distance(a, b) if a.shape == b.shape else float("inf") for name, (a, b) in pairs.items()}


def _wrong(mine: dict, due: dict, tolerance: float) -> list[str]:
    return [name for name, error in _errors(mine, due).items() if not error <= tolerance]


def _some(names: list[str]) -> str:
    return names[0] + (f" (and {len(names) - 1} more)" if len(names) > 1 else "")


def _model(seed: int, shape: dict, lap: bool = False):
    size = shape.get("size", "1M")
    return on_ranks.build(0 if lap else seed, 0, shape["n_layers"], tied=not lap, frozen=not lap, size=size)


def truth_of(seed: int, world_size: int, *, step: int = 1) -> Truth:
    """Compute each rank's micro-batches of a step, one by one in this process, with rank 0's weights."""
    model, counts = _model(seed, on_ranks.GRADIENT_SHAPE), on_ranks.MICRO_BATCHES

    def batches(of_step: int, rank: int):
        shape = on_ranks.GRADIENT_SHAPE | {"count": counts[of_step]}
        return on_ranks.micro_batches(seed, of_step, rank, world_size, shape)

    earlier = [batch for of_step in range(step) for rank in range(world_size) for batch in batches(of_step, rank)]
    truth = Truth([], [], [], sum(int((targets != on_ranks.IGNORED).sum()) for _, targets in earlier), 0)
    for rank in range(world_size):
        truth.sums.append([])
        truth.tokens.append([])
        for tokens, targets in batches(step, rank):
            model.zero_grad()
            loss_sum, n_tokens = on_ranks.token_loss(model, tokens, targets)
            loss_sum.backward()
            projected = project(on_ranks.gradients_of(model), seed)
            truth.names = sorted(projected)
            truth.sums[-1].append(vector(projected))
            truth.tokens[-1].append(int(n_tokens))
            truth.positions += targets.numel()
    return truth


def lap_proof_of(seed: int, world_size: int, *, step: int, tier: str) -> torch.Tensor:
    """Compute the proof of a timed step in this process. `tier`: the model of a lap depends on it."""
    shape, tokens_of_all = on_ranks.lap_shape(tier), 0
    model = _model(seed, shape, lap=True)
    for rank in range(world_size):
        for tokens, targets in on_ranks.micro_batches(seed, step, rank, world_size, shape):
            loss_sum, n_tokens = on_ranks.token_loss(model, tokens, targets)
            loss_sum.backward()
            tokens_of_all += int(n_tokens)
    for p in model.parameters():
        p.grad /= tokens_of_all
    return vector(on_ranks.lap_proof(model, seed))


def _diagnosis(of_ranks: list[dict], truth: Truth) -> str:
    for names in map(set, of_ranks):
        if missing := sorted(set(truth.names) - names):
            return f"{_some(missing)} has no gradient."
        if more := sorted(names - set(truth.names)):
            return f"{_some(more)} has a gradient and should have none: a frozen parameter keeps grad=None."
    mine = [vector(r) for r in of_ranks]
    if not all(torch.isfinite(v).all() for v in mine):
        return "a gradient is not finite."
    if all(_along(v, truth.local(rank)) for rank, v in enumerate(mine)):
        return "every rank has its own gradient only: nothing was exchanged."
    if any(distance(v, mine[0]) > SAME for v in mine):
        return _different(mine, of_ranks, truth)
    if _along(mine[0], truth.right) and abs(factor(mine[0], truth.right) - 1) > TOLERANCE:
        return _wrong_factor(factor(mine[0], truth.right), truth)
    if any(_along(mine[0], means) for means in (truth.mean_of_rank_means, truth.mean_of_all_means)):
        return (
            "ranks or micro-batches with few valid tokens weigh as much as full ones: a mean of means is not the mean."
        )
    if _along(mine[0], truth.last_micro_batch):
        return "only the last micro-batch counts: what no_sync accumulated is lost."
    wrong = {name: e for r in of_ranks for name, e in truth.errors(r).items() if not e <= TOLERANCE}
    worst = max(wrong, key=wrong.get)
    return (
        f"the gradients of {len(wrong)} of {len(truth.names)} parameters differ from the mean over all valid tokens of "
        f"all ranks and micro-batches, most of all {worst}'s, by {wrong[worst]:.2g} times its size."
    )


def _along(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether a is a nonzero multiple of b, up to rounding, or both are zero."""
    if not b.norm():
        return not a.norm()
    return factor(a, b) != 0 and distance(a / factor(a, b), b) <= SAME


def _different(mine: list[torch.Tensor], of_ranks: list[dict], truth: Truth) -> str:
    """Return how gradients that differ between ranks do so."""
    if all(_along(v, truth.right) for v in mine):
        own = [factor(v, truth.right) * sum(ns) for v, ns in zip(mine, truth.tokens, strict=True)]
        if max(own) - min(own) <= SAME * max(own):
            return "each rank divides the sum by its own number of tokens, and not by that of all ranks."
        return "the ranks ended with gradients of different size: each divides by another number."
    first = dict(zip(truth.names, mine[0].view(len(truth.names), -1), strict=True))
    names = {name for r in of_ranks for name in _wrong(r, first, SAME)}
    return f"the ranks ended with different gradients: {_some(sorted(names))} of {len(truth.names)} parameters."


def _wrong_factor(wrong: float, truth: Truth) -> str:
    n, n_tokens, count = len(truth.sums), truth.total, len(truth.sums[0])
    last = sum(ns[-1] for ns in truth.tokens)
    known = {
        n_tokens: ", the number of valid tokens: summed but never divided by it",
        n_tokens / n: ": averaged over ranks, but not divided by the tokens",
        n: ", the number of ranks",
        1 / n: ", one over the number of ranks",
        count: ", the number of micro-batches",
        1 / count: ", one over the number of micro-batches",
        n_tokens / last: ": divided by the tokens of the last micro-batch only",
        n_tokens / (n_tokens + truth.tokens_before): ": the tokens of the steps before are still counted",
        n_tokens / truth.positions: ": padding was counted, too",
    }
    name = next((words for f, words in known.items() if abs(wrong / f - 1) < SAME), "")
    size = f"{wrong:.4g} times too large" if wrong > 1 else f"{wrong:.4g} times as large as they should be"
    return f"the gradients point the right way but are {size}{name}."
