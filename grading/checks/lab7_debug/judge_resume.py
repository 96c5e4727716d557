"""Part 4: judge whether a resumed run equals the run that was never stopped.

They agree to the bit on as many ranks, on a CPU, and up to rounding on other ranks or on a GPU.
"""

import secrets
from math import inf

from grading.checks.errors_with_nan import largest, size
from grading.judge.session import Session
from grading.judge.tensor_projections import distance, vector
from grading.judge.verdict import Verdict
from shardlab.model import preset

STOPS, MORE_STEPS = (16, 19, 20, 21, 26), 4  # an epoch has 7 steps: they come in the third and the fourth
LOSS_TOLERANCE, WEIGHT_TOLERANCE = 1e-4, 1e-4  # on other ranks, or on a GPU; anything forgotten gives more
LARGEST_SHARE = 0.6  # share of the whole state that one file may hold
SENT_SHARE = 0.2  # share of the whole state that `save` may put through a rank's collectives
STATE_BYTES = 16 * preset("1M", n_layers=2).n_params  # weights, AdamW's two moments, and the average
RANDOM, SUM_TOLERANCE = "the random state", 1e-9  # of a run's state; only its causes need them
OTHERS = {2: (1,), 4: (2, 3), 8: (4, 6)}  # numbers of ranks to resume on


def judge(s: Session, check: str, points: float) -> Verdict:
    """Judge a run resumed on as many ranks, with dropout: on a CPU every number must be the same."""
    exact = s.tier.device == "cpu"
    due, saved, loaded, why = _save_and_load(s, check, secrets.token_hex(4), s.tier.world_size, dropout=0.1)
    figures, cause = _compare(due, saved, loaded, why, 0.0 if exact else LOSS_TOLERANCE)
    if cause:
        return Verdict(check, 0, points, cause, "", figures)
    return Verdict(check, points, points, f"{why}, nobody could tell that it was stopped.", "", figures)


def judge_resharding(s: Session, check: str, points: float) -> Verdict:
    """Judge a run resumed on fewer ranks, without dropout; half of the points if not every rank saves its own part."""
    folder = secrets.token_hex(4)
    for other in OTHERS[s.tier.world_size]:
        due, saved, loaded, why = _save_and_load(s, check, folder, other, dropout=0.0)
        figures, cause = _compare(due, saved, loaded, why, LOSS_TOLERANCE)
        if cause:
            return Verdict(check, 0, points, cause, "", figures)
    shares = (("largest file", "written", LARGEST_SHARE), ("collectives of `save` on a rank", "sent", SENT_SHARE))
    much = ""
    for name, key, share in shares:
        most, allowed = max(r[key] for r in saved), int(share * STATE_BYTES)
        figures[name] = (f"{most:,d} bytes", f"{allowed:,d} bytes")
        if most > allowed:
            much = much or f"{name}: {most:,d} bytes of {STATE_BYTES:,d}; allowed: {allowed:,d}."
    if much:
        return Verdict(check, points / 2, points, f"{why}, it goes on as it should. But {much}", "", figures)
    return Verdict(check, points, points, f"{why}, it goes on as if nothing had happened.", "", figures)


def _save_and_load(
    s: Session, check: str, folder: str, other: int, dropout: float
) -> tuple[dict, list[dict], list[dict], str]:
    """Return the replies of a run never saved (rank 0), of one that was saved and went on, and of the resumed one.

    The last item is the resumed run's name in words.
    """
    stop = STOPS[s.seed % len(STOPS)]
    common = dict(name=folder, seed=s.seed, dropout=dropout, stop=stop, last=stop + MORE_STEPS)
    never_saved = s.order_reference("interrupted", **common)[0]
    saved = s.order(check, "interrupted", **common)
    loaded = s.order(check, "resumed", world_size=other, **common)
    return never_saved, saved, loaded, f"stopped after {stop} steps on {s.tier.world_size} ranks and resumed on {other}"


def _compare(due: dict, saved: list[dict], loaded: list[dict], why: str, tolerance: float) -> tuple[dict, str]:
    figures, cause = _first_difference(due, saved, "saved and not stopped", tolerance)
    if cause:
        return figures, f"`save` disturbs the run that goes on: {cause}{_other_state(saved, saved, 'after `save`')}"
    figures, cause = _first_difference(due, loaded, why, tolerance)
    return figures, cause and cause + _other_state(saved, loaded, "after `load`")


def _other_state(saved: list[dict], now: list[dict], when: str) -> str:
    """Return in words what is not as it was before `save`, or an empty string. (Random numbers: on as many ranks.)"""
    before = saved[0]["state"]
    other = [
        name
        for name, sums in before.items()
        if name != RANDOM and any(_apart(r["kept"].get(name, []), sums) > SUM_TOLERANCE for r in now)
    ]
    if len(now) == len(saved) and any(a["kept"][RANDOM] != b["state"][RANDOM] for a, b in zip(now, saved, strict=True)):
        other.append(f"{RANDOM} of a rank")
    return f" Not as before `save`, {when}: {', '.join(other)}." if other else ""


def _apart(a: list[float], b: list[float]) -> float:
    return largest((x - y) / (abs(y) + SUM_TOLERANCE) for x, y in zip(a, b, strict=True)) if len(a) == len(b) else inf


def _first_difference(due: dict, loaded: list[dict], why: str, tolerance: float) -> tuple[dict, str]:
    """Return the figures, and the first difference in words; samples and rates come before losses and weights."""
    apart = [largest(a / b - 1 for a, b in zip(r["losses"], due["losses"], strict=True)) for r in loaded]
    figures = {"losses afterwards, largest relative difference": (f"{max(apart):.1e}", f"{tolerance:g}")}
    for name, key in (("weights", "weights"), ("average of the weights", "average")):
        off = max(distance(vector(r[key]), vector(due[key])) for r in loaded)
        figures[f"{name} at the end"] = (f"{off:.1e} apart", f"{WEIGHT_TOLERANCE if tolerance else 0:g}")
    for r in loaded:
        if r["samples"] != due["samples"]:
            (epoch, taken), (epoch_due, taken_due) = r["samples"], due["samples"]
            return figures, (
                f"{why}, the run ends at sample {taken} of epoch {epoch}, and should at sample {taken_due} of epoch "
                f"{epoch_due}: other samples are seen."
            )
    rates = [(a, b) for r in loaded for a, b in zip(r["rates"], due["rates"], strict=True) if not abs(a - b) <= 1e-12]
    if rates:
        return figures, f"{why}, a step's learning rate is {rates[0][0]:.6f}, and should be {rates[0][1]:.6f}."
    for mine in loaded:
        for i, (loss, right) in enumerate(zip(mine["losses"], due["losses"], strict=True)):
            if size(loss / right - 1) > tolerance:
                return figures, f"{why}, the loss of step {i + 1} afterwards is {loss:.7f}, and not {right:.7f}."
    for name, key in (("weights", "weights"), ("average of the weights", "average")):
        off = max(distance(vector(r[key]), vector(due[key])) for r in loaded)
        if off > (WEIGHT_TOLERANCE if tolerance else 0):
            return figures, f"{why}, all losses are right, but the {name} is another one at the end ({off:.1e} apart)."
    return figures, ""
