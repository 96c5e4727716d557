"""Part 3: judge peak bytes, losses and FLOPs of precision and recomputation together, at both budgets of the tier."""

from grading.checks.lab5_precision_recompute import on_ranks
from grading.checks.lab5_precision_recompute.judge_losses import worst_loss
from grading.checks.lab5_precision_recompute.reference_answers import best_plan, flops_of
from grading.judge.session import Session
from grading.judge.verdict import Verdict

STEPS = 4
LOSS_OFF = 0.005  # in so few steps correct bf16 is off by 0.003, different dropout masks by 0.01
LEAST, NEARLY = 1.05, 1.5  # recomputed FLOPs over the fewest: for all points, for three of four
TOO_FEW = 0.5  # over the fewest, if a block must be recomputed in full
SHARES = 1.0, 0.75, 0.5


def judge(s: Session, check: str, points: float) -> Verdict:
    figures, causes, ratios = {}, [], []
    for name, (allowed, activations) in on_ranks.BUDGETS[s.tier.name].items():
        arguments = dict(seed=s.seed, tier=s.tier.name, budget=name, steps=STEPS)
        mine = s.order(check, "both", **arguments)
        reference = s.order_reference("both", **arguments | {"budget": "wide"})
        worst = max(mine, key=lambda reply: reply["peak_bytes"])
        off = worst_loss(mine, reference)
        extra = max(m["flops"] for m in mine) - reference[0]["flops"]
        blocks = reference[0]["blocks"]
        plan = best_plan(blocks, activations)
        ratios.append(extra / flops_of(plan, blocks))
        least = TOO_FEW if "full" in plan else 0  # if none is full, a policy may fit and save more than "selective"
        figures[f"{name}: peak"] = f"{worst['peak_bytes']:,} bytes, in {worst['where']}", f"{allowed:,} bytes"
        figures[f"{name}: furthest loss off by"] = f"{off:.4f}", f"{LOSS_OFF}"
        due = f"{least} to {LEAST}; {NEARLY} for three points"
        figures[f"{name}: FLOPs again, over the fewest"] = f"{ratios[-1]:.2f}", due
        causes += _causes(name, worst["peak_bytes"] / allowed, off, ratios[-1], least, worst["dtypes"])
    if causes:
        return Verdict(check, 0, points, causes[0], "", figures)
    full, nearly = max(ratios) <= LEAST, max(ratios) <= NEARLY
    cause = (
        "both budgets are met at the least cost."
        if full
        else (f"both budgets are met, but one at {max(ratios):.2f} times the FLOPs that a plan for it needs.")
    )
    return Verdict(check, points * SHARES[0 if full else 1 if nearly else 2], points, cause, "", figures)


def _causes(name: str, peak: float, loss_off: float, ratio: float, least: float, dtypes: list[str]) -> list[str]:
    found = []
    if peak > 1:
        why = "nothing is recomputed" if ratio <= 0 else "the plan, the policy or the order of wrapping leaves too much"
        found.append(f"{peak:.2f} times the {name} budget at the peak: {why}.")
    if dtypes != ["float32"]:
        found.append(
            f"with the {name} budget parameters or logits are in {', '.join(dtypes)}: see lab5.held and lab5.curve."
        )
    if peak <= 1 and ratio < least:
        found.append(
            f"within the {name} budget at {ratio:.2f} times the FLOPs that a plan for it needs: what backward needs "
            "was put where it is not counted."
        )
    if loss_off > LOSS_OFF:
        found.append(f"with the {name} budget the losses are not fp32's: see lab5.curve and lab5.gradients.")
    return found
