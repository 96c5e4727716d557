"""Compare the norm that `step` returns on each rank with that of the whole mean gradient before clipping."""

from grading.checks.errors_with_nan import largest
from grading.checks.lab3_zero.truth import simulate
from grading.checks.lab3_zero.update import ask, setting
from grading.judge.session import Session
from grading.judge.verdict import Verdict

TOLERANCE = 1e-3  # relative
PLAN = [(2, 1.0), (1, 4.0), (2, 0.5)]  # (micro-batches, factor of the loss)


def judge(s: Session, check: str, points: float) -> Verdict:
    """Judge the norm. The learning rate is 0, so a wrong update does not matter here."""
    max_norm = 1.5 * simulate(setting(s, "none", 1.0, PLAN[:1]))[0].norm
    run = setting(s, "none", max_norm, PLAN)
    found, truth = [[step["norm"] for step in reply] for reply in ask(s, check, run)], simulate(run)  # [rank][step]
    errors = [largest(abs(f[k] / right.norm - 1) for f in found) for k, right in enumerate(truth)]
    k = next((k for k, error in enumerate(errors) if not error <= TOLERANCE), None)
    worst = max(errors) if k is None else errors[k]
    figures = {"relative error of the norm": (f"{worst:.1e}", f"{TOLERANCE:g}")}
    if k is None:
        return Verdict(check, points, points, "every rank returns the norm of the whole gradient.", "", figures)
    cause = f"step {k + 1}: {_cause([f[k] for f in found], truth[k].norm, max_norm, first=k == 0)}"
    return Verdict(check, 0, points, cause, "", figures)


def _cause(mine: list[float], right: float, max_norm: float, first: bool) -> str:
    n = len(mine)
    if max(mine) - min(mine) > TOLERANCE * right:
        if _near(sum(x * x for x in mine), right**2):
            return "every rank returns the norm of its own slices; they were never put together."
        return f"the ranks return different norms, from {min(mine):.4g} to {max(mine):.4g}, where {right:.4g} is due."
    ratio = mine[0] / right
    known = [
        (mine[0] == 0, "the norm is 0: the parameters' own .grad are gone by now."),
        (right > max_norm and _near(mine[0], max_norm), "this is the norm after clipping; the one before is due."),
        (_near(ratio, right), "this is the square of the norm: its root is due."),
        (_near(ratio, n), f"{n} times too large: the norm of a sum over ranks, not of the mean."),
        (_near(ratio, n**0.5), f"the root of {n} times too large: every rank's squares are those of the whole."),
        (_near(ratio, n**-0.5), f"the root of {n} times too small: squares were averaged over ranks, not summed."),
        (not first, f"{mine[0]:.4g} where {right:.4g} is due, and the step before was right: is something of it left?"),
        (
            1 < ratio < n**0.5,
            f"{ratio:.2f} times too large: were norms added up, where squares do, or does something count twice?",
        ),
    ]
    return next((words for holds, words in known if holds), f"{mine[0]:.4g} was returned and {right:.4g} is due.")


def _near(a: float, b: float) -> bool:
    return abs(a / b - 1) < 10 * TOLERANCE
