"""Judge whether the numbers match fp32: the first logits and ten losses are compared with the reference's.

If the logits are wrong, the reference's logits are computed again with each likely rounding; the nearest names the
mistake.
"""

import math

import torch
from torch import nn

from grading.checks.lab5_precision_recompute import on_ranks
from grading.judge.session import Session
from grading.judge.tensor_projections import distance
from grading.judge.verdict import Verdict

STEPS = 10
LOGITS_OFF, LOSS_OFF = 0.02, 0.01  # correct bf16 is off by 0.007 and 0.003, every mistake by 0.3 or 0.015
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
    pairs = [(torch.tensor(m["logits"]), torch.tensor(r["logits"])) for m, r in zip(mine, reference, strict=True)]
    logits_off = max(distance(m, r) for m, r in pairs)
    loss_off = worst_loss(mine, reference)
    dtype = mine[0]["logits_dtype"]
    figures = {
        "logits of the first step off by": (f"{logits_off:.2%}", f"{LOGITS_OFF:.0%}"),
        f"furthest loss of {STEPS} steps off by": (f"{loss_off:.4f}", f"{LOSS_OFF}"),
        "dtype of the logits": (dtype, "float32"),
    }
    cause = _cause(s, pairs[0][0], logits_off, loss_off, dtype)
    if cause:
        return Verdict(check, 0, points, cause, "", figures)
    return Verdict(check, points, points, "the losses are those of fp32.", "", figures)


def worst_loss(mine: list[dict], reference: list[dict]) -> float:
    """Return the largest difference of the losses' mean over ranks; infinity if one is not finite or is missing."""
    means = [torch.tensor([r["losses"] for r in replies], dtype=torch.float64).mean(0) for replies in (mine, reference)]
    off = float((means[0] - means[1]).abs().max()) if means[0].shape == means[1].shape else math.inf
    return off if math.isfinite(off) else math.inf


def _cause(s: Session, logits: torch.Tensor, logits_off: float, loss_off: float, dtype: str) -> str:
    if not (math.isfinite(logits_off) and math.isfinite(loss_off)):
        return "a logit or a loss is not finite: some number is beyond the range of its dtype (fp16 ends at 65,504)."
    if logits_off > FAR:
        return _nearest(s, logits, logits_off)
    if dtype != "float32":
        return f"the logits come out in {dtype}, and so the loss is computed and rounded in it."
    if logits_off > LOGITS_OFF:
        return "the logits are further off than one rounding of each number to bf16 explains."
    if loss_off > LOSS_OFF:
        return (
            "the first logits are right, and the losses drift away from fp32's: what adds up over steps or over ranks "
            "is rounded."
        )
    return ""


def _nearest(s: Session, logits: torch.Tensor, off: float) -> str:
    """Name the likely rounding of rank 0's forward that comes nearest to rank 0's reply."""
    distances = {words: distance(logits, _rounded(s, *how)) for words, how in ROUNDINGS.items()}
    words = min(distances, key=distances.get)
    if distances[words] < NEAR * off:
        return words
    return "the first logits differ from fp32's by far more than rounding explains: is this still the same model?"


def _rounded(s: Session, positions: bool, rates: bool) -> torch.Tensor:
    """Compute rank 0's first logits in this process, in fp32, with positions or forgetting rates rounded."""
    shape = on_ranks.shape_of(s.seed, s.tier.name)
    model = on_ranks.build(s.seed, shape)
    if rates:
        for block in model.blocks:
            block.memory.forget = _Rounded(block.memory.forget.bfloat16())
    tokens, _, where = on_ranks.batch_of(s.seed, 0, shape, 0, s.tier.world_size, device="cpu")  # no GPU is ours here
    with torch.no_grad():
        logits = model(tokens, where.bfloat16().float() if positions else where)
    return on_ranks.some_logits(logits, shape)


class _Rounded(nn.Module):
    def __init__(self, forget: nn.Module) -> None:
        super().__init__()
        self.forget = forget

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        return self.forget(positions).float()
