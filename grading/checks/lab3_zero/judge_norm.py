"""Compare the norm that `step` returns on each rank with that of the whole mean gradient before clipping."""

from grading.checks.errors_with_nan import largest
from grading.checks.lab3_zero.judge_update import ask, setting
from grading.checks.lab3_zero.truth import simulate
from grading.judge.session import Session
from grading.judge.verdict import Verdict

TOLERANCE = 2e-5  # relative; rounding gives 1e-6, one parameter of a single element more than 5e-5
SAME = 1e-3  # relative distance from what a mistake would give
PLAN = [(2, 1.0), (1, 4.0), (2, 0.5)]  # (micro-batches, factor of the loss)


def judge(s: Session, check: str, points: float) -> Verdict:
    """Judge the norm. The learning rate is 0, so a wrong update does not matter here."""
    max_norm = 1.5 * simulate(setting(s, "none", 1.0, PLAN[:1]))[0].norm
    run = setting(s, "none", max_norm, PLAN)
    replies, right = ask(s, check, run), [step.norm for step in simulate(run)]
    found = [[step["norm"] for step in reply] for reply in replies]  # [rank][step]
    for rank, reply in enumerate(replies):
        if not all(step["is_scalar"] for step in reply):
            cause = f"on rank {rank} `step` returns neither a float nor a scalar tensor (one with `dim() == 0`)."
            return Verdict(check, 0, points, cause)
    errors = [largest(abs(f[k] / due - 1) for f in found) for k, due in enumerate(right)]
    k = next((k for k, error in enumerate(errors) if not error <= TOLERANCE), None)
    worst = max(errors) if k is None else errors[k]
    figures = {"relative error of the norm": (f"{worst:.1e}", f"{TOLERANCE:g}")}
    if k is None:
        return Verdict(check, points, points, "every rank returns the norm of the whole gradient.", "", figures)
    return Verdict(check, 0, points, f"step {k + 1}: {_cause(found, right, max_norm, k)}", "", figures)


def _cause(found: list[list[float]], right: list[float], max_norm: float, k: int) -> str:
    """Return what is wrong in step k. A mistake is named if it explains the norms of all steps."""
    mine, n = [f[k] for f in found], len(found)
    if max(mine) - min(mine) > TOLERANCE * right[k]:
        squares_add_up = all(_near(sum(f[j] ** 2 for f in found), due**2) for j, due in enumerate(right))
        if squares_add_up and not _near(max(mine), right[k]):  # else one rank has the norm, and the others nothing
            return "the squares of the ranks' norms add up to the square of the right one: put them together."
        return (
            f"the ranks return different norms, from {min(mine):.5g} to {max(mine):.5g}, where {right[k]:.5g} is due."
        )
    seen = f"{mine[0]:.5g} was returned and {right[k]:.5g} is due"
    known = {
        "the norm after clipping": [min(due, max_norm) for due in right],
        "the norm's square": [due**2 for due in right],
        "the norm of a sum over ranks, not of the mean": [n * due for due in right],
        "every rank's squares being those of the whole gradient, added up": [n**0.5 * due for due in right],
        "squares that are averaged over ranks, not added up": [n**-0.5 * due for due in right],
    }
    for words, norms in known.items():
        if all(_near(f[j], norms[j]) for f in found for j in range(len(right))):
            return f"{seen}. All steps agree with {words}."
    return f"{seen}." if k == 0 else f"{seen}; the step before was right."


def _near(a: float, b: float) -> bool:
    return abs(a - b) < SAME * abs(b)
