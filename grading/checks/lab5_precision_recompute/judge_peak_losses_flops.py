"""Part 3: judge peak bytes, losses and FLOPs of precision and recomputation together, at both budgets of the tier."""

from grading.checks.lab5_precision_recompute import judge_held_between_steps, judge_wire, on_ranks
from grading.checks.lab5_precision_recompute.judge_matches_fp32 import (
    gradient_figure,
    losses_off,
    of_dtypes,
    of_gradients,
    of_losses,
    of_weights,
)
from grading.judge.session import Session
from grading.judge.verdict import Verdict

STEPS = 4
LOSS_OFF = 0.01  # correct bf16 is off by up to 0.0052 (80 seeds)
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
        losses = losses_off(mine, reference)
        best = s.solve("fewest", reference[0]["blocks"], activations)
        again = [(m["flops"] - reference[0]["flops"]) / best["flops"] for m in mine]
        ratios.append(max(again))
        least = TOO_FEW if best["full"] else 0  # if none is full, a policy may fit and save more than "selective"
        figures[f"{name}: peak"] = f"{worst['peak_bytes']:,} bytes, in {worst['where']}", f"{allowed:,} bytes"
        figures[f"{name}: furthest loss off by"] = f"{max(losses):.4f}", f"{LOSS_OFF}"
        due = f"{least} to {LEAST}; {NEARLY} for three points"
        figures[f"{name}: FLOPs again, over the fewest"] = f"{ratios[-1]:.2f}", due
        held, _ = judge_held_between_steps.look(mine, reference)
        messages, more = judge_wire.look(mine, reference)
        more |= gradient_figure(mine, reference)
        figures |= {f"{name}: {words}": pair for words, pair in more.items()}
        found = (
            _of_peak(worst, allowed, max(again)),
            held,
            messages,
            of_dtypes(mine),
            of_weights(mine, "prepare"),
            of_gradients(mine, reference),
            of_losses(losses, LOSS_OFF),
            _of_flops(min(again), least),
        )
        causes += [f"with the {name} budget, {words}" for words in found if words]
    if causes:
        return Verdict(check, 0, points, causes[0], "", figures)
    full, nearly = max(ratios) <= LEAST, max(ratios) <= NEARLY
    cause = (
        "both budgets are met at the least cost."
        if full
        else (f"both budgets are met, but one at {max(ratios):.2f} times the FLOPs that a plan for it needs.")
    )
    return Verdict(check, points * SHARES[0 if full else 1 if nearly else 2], points, cause, "", figures)


def _of_peak(worst: dict, allowed: int, again: float) -> str:
    if worst["peak_bytes"] <= allowed:
        return ""
    parts = ", ".join(f"{name.replace('_', ' ')} {n:,}" for name, n in worst["peak"].items())
    nothing = ", and nothing is recomputed" if again <= 0 else ""
    return (
        f"the peak is {worst['peak_bytes'] / allowed:.2f} times what is allowed{nothing}. "
        f"It is in {worst['where']}; the bytes: {parts}."
    )


def _of_flops(again: float, least: float) -> str:
    if again >= least:
        return ""
    return (
        f"the peak is low at {again:.2f} times the FLOPs that the cheapest plan computes again: "
        "what a block does not hold is to be computed again."
    )
