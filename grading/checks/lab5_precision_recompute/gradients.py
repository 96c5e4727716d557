"""Judge whether the second forward repeats the first: two steps' gradients with dropout must equal a plain model's."""

import random

from grading.checks.lab5_precision_recompute import on_ranks
from grading.checks.lab5_precision_recompute.reference_answers import WAYS
from grading.judge.session import Session
from grading.judge.tensor_projections import distance, vector
from grading.judge.verdict import Verdict

TOLERANCE = 1e-4  # relative: on a CPU the same operations in the same order agree to the bit; another mask gives 0.1


def plans(s: Session) -> list[list[str]]:
    """Return plans that treat all blocks alike, and one that mixes the ways in a drawn order."""
    n_blocks = len(on_ranks.SHAPES[s.tier.name]["hidden"])
    mixed = random.Random(s.seed).sample([*WAYS, *("full", "selective")], n_blocks)
    return [*([way] * n_blocks for way in WAYS), mixed]


def run(s: Session, check: str, dropout: float = on_ranks.DROPOUT) -> list[dict]:
    """Return the submission's reply for each plan."""
    return s.order(check, "recompute", **_arguments(s, dropout))[0]


def reference_run(s: Session, dropout: float = on_ranks.DROPOUT) -> list[dict]:
    return s.order_reference("recompute", **_arguments(s, dropout))[0]


def _arguments(s: Session, dropout: float) -> dict:
    return dict(world_size=1, seed=s.seed, tier=s.tier.name, plans=plans(s), dropout=dropout)


def judge(s: Session, check: str, points: float) -> Verdict:
    errors = _errors(run(s, check), reference_run(s)[0])
    worst = max(max(pair) for pair in errors)
    figures = {"relative error of the gradients": (f"{worst:.1e}", f"{TOLERANCE:g}")}
    if worst <= TOLERANCE:
        return Verdict(check, points, points, "gradients are those of the model without recomputation.", "", figures)
    words = [", ".join(plan) for plan in plans(s)]
    bad = next(i for i, pair in enumerate(errors) if max(pair) > TOLERANCE)
    return Verdict(check, 0, points, f"with the plan {words[bad]}: {_cause(s, check, errors, bad)}", "", figures)


def _errors(mine: list[dict], plain: dict) -> list[tuple[float, float]]:
    """Return each plan's errors in the first step and in the second."""
    truth = [vector(g) for g in plain["gradients"]]
    return [tuple(distance(vector(g), t) for g, t in zip(m["gradients"], truth, strict=True)) for m in mine]


def _cause(s: Session, check: str, errors: list[tuple[float, float]], bad: int) -> str:
    dry = _errors(run(s, check, dropout=0.0), reference_run(s, dropout=0.0)[0])[bad]
    if max(dry) > TOLERANCE:
        return "gradients are wrong even without dropout."
    if errors[bad][0] <= TOLERANCE:
        return (
            "the first step is right, the second is not: after a backward the random generator stands elsewhere than "
            "without recomputation."
        )
    return (
        "without dropout they are right, with it they are those of a network that never ran: the second forward draws "
        "other masks than the first."
    )
