"""Part 1: judge how a trace is read, on drawn traces. If it is read wrongly, try the usual mistakes on them too."""

import math

from grading.checks.errors_with_nan import largest
from grading.checks.lab6_profile import named_mistake
from grading.checks.lab6_profile.named_mistake import N_PLAIN, SHARES, TOLERANCE
from grading.judge.session import Session
from grading.judge.verdict import Verdict


def judge_shares(s: Session, check: str, points: float) -> Verdict:
    """Give full points if all traces are right, half if the plain ones are (events take turns inside the step)."""
    drawn = s.solve("drawn", s.seed)
    found = _found(s, check, drawn)
    if problem := _problem(found, SHARES):
        return Verdict(check, 0, points, problem)
    errors = [largest(abs(f[k] - r[k]) for k in SHARES) for f, r in zip(found, drawn["right"], strict=True)]
    figures = {
        "worst share, events in turn": (f"off by {max(errors[:N_PLAIN]):.3f}", f"{TOLERANCE:g}"),
        "worst share, all traces": (f"off by {max(errors):.3f}", f"{TOLERANCE:g}"),
    }
    if max(errors) <= TOLERANCE:
        return Verdict(check, points, points, "every moment of every step is where it belongs.", "", figures)
    half = max(errors[:N_PLAIN]) <= TOLERANCE
    cause = named_mistake.of_shares(found, drawn)
    if half:
        cause = f"right where events take turns inside the step, and not where they don't: {cause}"
    return Verdict(check, points / 2 if half else 0, points, cause, "", figures)


def judge_hidden(s: Session, check: str, points: float) -> Verdict:
    """Give half the points for the hidden share, half for the unit."""
    drawn = s.solve("drawn", s.seed)
    found = _found(s, check, drawn)
    if problem := _problem(found, ("hidden", "unit")):
        return Verdict(check, 0, points, problem)
    right = drawn["right"]
    error = largest(abs(f["hidden"] - r["hidden"]) for f, r in zip(found, right, strict=True))
    units = sum(f["unit"] == r["unit"] for f, r in zip(found, right, strict=True))
    figures = {
        "hidden": (f"off by {error:.3f}", f"{TOLERANCE:g}"),
        "unit": (f"right in {units} of {len(right)} traces", f"{len(right)}"),
    }
    earned = points / 2 * ((error <= TOLERANCE) + (units == len(right)))
    cause = "what is hidden, and who is waited for, is told right."
    if units < len(right):
        cause = named_mistake.of_unit(found, drawn)
    elif error > TOLERANCE:
        cause = named_mistake.of_hidden(found, drawn)
    return Verdict(check, earned, points, cause, "", figures)


def _found(s: Session, check: str, drawn: dict) -> list[dict]:
    return s.order(check, "read", world_size=1, device="cpu", traces=drawn["traces"])[0]


def _problem(found: list[dict], keys: tuple[str, ...]) -> str:
    missing = [k for k in keys if any(k not in f for f in found)]
    if missing:
        return f"read_step's dictionary has no {', '.join(map(repr, missing))}."
    broken = sorted({k for f in found for k in keys if k != "unit" and not math.isfinite(f[k])})
    return f"not a finite number: {', '.join(map(repr, broken))}." if broken else ""
