"""Judge whether the numbers match fp32: the first logits and gradients, and ten losses, beside the reference's.

If the logits are wrong, the reference's logits are computed again with each likely rounding; the nearest names the
mistake.
"""

import math

import torch
from torch import nn

from grading.checks.lab5_precision_recompute import on_ranks
from grading.judge.session import Session
from grading.judge.tensor_projections import distance, factor, parallel, vector
from grading.judge.verdict import Verdict

STEPS = 10
LOGITS_OFF, LOSS_OFF = 0.02, 0.01  # correct bf16 is off by 0.007 and 0.003, every mistake by 0.3 or 0.015
GRADIENT_OFF, RATE_OFF = 0.04, 0.3  # correct bf16 is off by 0.010 and 0.077, other masks in one block by 0.08
CHANGED = 1e-5  # of a weight's length; rounding to bf16 gives 1e-4 and more
FAR, NEAR = 0.05, 0.4  # an error above FAR needs a cause; a rounding explains it if less than NEAR of it remains

ROUNDINGS = {  # cause -> (positions, rates)
    "the rates of forgetting were computed in 16 bits. What becomes of a, and of 1 - a, where a is close to 1?": (
        False,
        True,
    ),
    "positions reached the blocks in 16 bits. How many different numbers are left of 64 neighbours near 20,000?": (
        True,
        False,
    ),
    "both the positions and the rates at which heads forget were rounded to 16 bits: look at what a block is given, "
    "and at which of its parameters can't be rounded.": (True, True),
}


def run(s: Session, check: str) -> list[dict]:
    return s.order(check, "precision", seed=s.seed, tier=s.tier.name, steps=STEPS)


def reference_run(s: Session) -> list[dict]:
    return s.order_reference("precision", seed=s.seed, tier=s.tier.name, steps=STEPS)


def judge(s: Session, check: str, points: float) -> Verdict:
    mine, reference = run(s, check), reference_run(s)
    offs = [
        distance(torch.tensor(m["logits"]), torch.tensor(r["logits"])) for m, r in zip(mine, reference, strict=True)
    ]
    logits_off = max(offs)
    losses = losses_off(mine, reference)
    figures = {
        "logits of the first step off by": (f"{logits_off:.2%}", f"{LOGITS_OFF:.0%}"),
        f"furthest loss of {STEPS} steps off by": (f"{max(losses):.4f}", f"{LOSS_OFF}"),
        "dtype of the logits": (", ".join(logits_dtypes(mine)), "float32"),
    } | gradient_figure(mine, reference)
    cause = _of_logits(s, mine, offs) or of_dtypes(mine)
    if not cause and logits_off > LOGITS_OFF:
        cause = f"the first logits are off by {logits_off:.1%}."
    if cause := of_weights(mine, "shard") or cause or of_gradients(mine, reference) or of_losses(losses, LOSS_OFF):
        return Verdict(check, 0, points, cause, "", figures)
    return Verdict(check, points, points, "the losses are those of fp32.", "", figures)


def of_weights(mine: list[dict], function: str) -> str:
    """Name the parameter that the function (`shard`, `prepare`) changed most; "" if it changed none."""
    sums = {name: [sum(m["weights"][name][i] for m in mine) for i in (0, 1)] for name in mine[0]["weights"]}
    offs = {name: abs(begun - given) for name, (given, begun) in sums.items()}
    name = max(offs, key=offs.get)
    if offs[name] <= CHANGED:
        return ""
    return f"`{function}` changed {name}: the weights that are trained are not those that it was given, or are rounded."


def logits_dtypes(mine: list[dict]) -> list[str]:
    return sorted({dtype for m in mine for dtype in m["logits_dtypes"]})


def losses_off(mine: list[dict], reference: list[dict]) -> list[float]:
    """Return how far the losses' mean over ranks is off in each step; infinity if it is not finite."""
    means = [torch.tensor([r["losses"] for r in replies], dtype=torch.float64).mean(0) for replies in (mine, reference)]
    return [off if math.isfinite(off) else math.inf for off in (means[0] - means[1]).abs().tolist()]


def gradients_off(mine: dict, reference: dict) -> dict[str, float]:
    """Return how far a rank's gradients are off, of each parameter that has one."""
    return {
        name: distance(vector({name: mine[name]}), vector({name: reference[name]}))
        for name in reference
        if name in mine
    }


def furthest_gradient(mine: list[dict], reference: list[dict]) -> tuple[float, float, str, int]:
    """Return what is furthest off of the first gradients: in times of what is allowed, relative, its name, its rank."""
    pairs = enumerate(zip(mine, reference, strict=True))
    offs = [
        (off / (RATE_OFF if name.endswith("log_rate") else GRADIENT_OFF), off, name, rank)
        for rank, (m, r) in pairs
        for name, off in gradients_off(m["gradients"], r["gradients"]).items()
    ]
    return max(offs, default=(0.0, 0.0, "none", 0))


def gradient_figure(mine: list[dict], reference: list[dict]) -> dict[str, tuple[str, str]]:
    _, off, name, _ = furthest_gradient(mine, reference)
    allowed = f"{GRADIENT_OFF:.0%}; {RATE_OFF:.0%} for a log_rate"
    return {"furthest gradient of the first step off by": (f"{off:.1%}, {name}", allowed)}


def of_gradients(mine: list[dict], reference: list[dict]) -> str:
    times_allowed, off, name, rank = furthest_gradient(mine, reference)
    if times_allowed <= 1:
        return ""
    found, right = (vector({name: replies[rank]["gradients"][name]}) for replies in (mine, reference))
    times = factor(found, right)
    if times > 0 and parallel(found, right, GRADIENT_OFF):
        return f"in the first step, the gradient of {name} is {times:.3g} times the mean over ranks."
    return f"in the first step, the gradient of {name} is off by {off:.0%} on rank {rank}."


def of_losses(losses: list[float], allowed: float) -> str:
    bad = next((step for step, off in enumerate(losses, start=1) if off > allowed), None)
    if bad is None:
        return ""
    if math.isinf(losses[bad - 1]):
        return f"the loss of step {bad} is not finite."
    before = f"the losses are right up to step {bad - 1}, and that" if bad > 1 else "the loss"
    return f"{before} of step {bad} is off by {losses[bad - 1]:.4f}."


def of_dtypes(mine: list[dict]) -> str:
    if (dtypes := logits_dtypes(mine)) == ["float32"]:
        return ""
    return f"the logits come out in {', '.join(dtypes)}, and so the loss is computed and rounded in it."


def _of_logits(s: Session, mine: list[dict], offs: list[float]) -> str:
    """Name the likely rounding that comes nearest to the reply of the rank whose logits are furthest off."""
    off = max(offs)
    rank = offs.index(off)
    if off <= FAR:
        return ""
    if not math.isfinite(off):
        return f"the first logits of rank {rank} are not all finite, or not as many as there should be."
    logits = torch.tensor(mine[rank]["logits"])
    distances = {words: distance(logits, _rounded(s, rank, *how)) for words, how in ROUNDINGS.items()}
    words = min(distances, key=distances.get)
    if distances[words] < NEAR * off:
        return words
    return f"the first logits of rank {rank} are off by {off:.0%}, and neither rounded positions nor rates explain it."


def _rounded(s: Session, rank: int, positions: bool, rates: bool) -> torch.Tensor:
    """Compute a rank's first logits in this process, in fp32, with positions or forgetting rates rounded."""
    shape = on_ranks.shape_of(s.seed, s.tier.name)
    model = on_ranks.build(s.seed, shape)
    if rates:
        for block in model.blocks:
            block.memory.forget = _Rounded(block.memory.forget.bfloat16())
    tokens, _, where = on_ranks.batch_of(s.seed, 0, shape, rank, s.tier.world_size, device="cpu")  # no GPU is ours here
    with torch.no_grad():
        logits = model(tokens, where.bfloat16().float() if positions else where)
    return torch.tensor(on_ranks.some_logits(logits, shape))


class _Rounded(nn.Module):
    def __init__(self, forget: nn.Module) -> None:
        super().__init__()
        self.forget = forget

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        return self.forget(positions).float()
