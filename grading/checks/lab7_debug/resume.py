"""Part 4: judge whether a resumed run equals the run that was never stopped.

They agree to the bit on as many ranks, on a CPU, and up to rounding on other ranks or on a GPU.
"""

import secrets

from grading.checks.errors_with_nan import largest
from grading.judge.session import Session
from grading.judge.tensor_projections import distance, vector
from grading.judge.verdict import Verdict
from shardlab.model import preset

STOPS, MORE_STEPS = (5, 6, 8, 9), 4  # an epoch has 7 steps
LOSS_TOLERANCE, WEIGHT_TOLERANCE = 1e-4, 1e-3  # on other ranks, or on a GPU; anything forgotten gives more
LARGEST_SHARE = 0.6  # share of the whole state that one file may hold
STATE_BYTES = 16 * preset("1M", n_layers=2).n_params  # weights, AdamW's two moments, and the average


def judge(s: Session, check: str, points: float) -> Verdict:
    """Judge a run resumed on as many ranks, with dropout: on a CPU every number must be the same."""
    exact = s.tier.device == "cpu"
    due, saved, loaded, why = _save_and_load(s, check, s.tier.world_size, dropout=0.1)
    figures, cause = _compare(due, saved, loaded, why, 0.0 if exact else LOSS_TOLERANCE)
    if cause:
        return Verdict(check, 0, points, cause, "", figures)
    return Verdict(check, points, points, f"{why}, nobody could tell that it was stopped.", "", figures)


def judge_resharding(s: Session, check: str, points: float) -> Verdict:
    """Judge a run resumed on fewer ranks, without dropout; half of the points if one file holds nearly everything."""
    other = {2: (1, 1), 4: (2, 3), 8: (4, 6)}[s.tier.world_size][s.seed % 2]
    due, saved, loaded, why = _save_and_load(s, check, other, dropout=0.0)
    figures, cause = _compare(due, saved, loaded, why, LOSS_TOLERANCE)
    if cause:
        return Verdict(check, 0, points, cause, "", figures)
    largest, allowed = max(r["written"] for r in saved), int(LARGEST_SHARE * STATE_BYTES)
    figures["largest file"] = (f"{largest:,d} bytes", f"{allowed:,d} bytes")
    if largest > allowed:
        cause = f"{why}, it goes on as it should. But one file of {largest:,d} bytes holds nearly all of the state."
        return Verdict(check, points / 2, points, cause, "", figures)
    return Verdict(check, points, points, f"{why}, it goes on as if nothing had happened.", "", figures)


def _save_and_load(s: Session, check: str, other: int, dropout: float) -> tuple[dict, list[dict], list[dict], str]:
    """Return the replies of a run never saved (rank 0), of one that was saved and went on, and of the resumed one.

    The last item is the resumed run's name in words.
    """
    stop = STOPS[s.seed % len(STOPS)]
    common = dict(name=secrets.token_hex(4), seed=s.seed, dropout=dropout, stop=stop, last=stop + MORE_STEPS)
    never_saved = s.order_reference("interrupted", **common)[0]
    saved = s.order(check, "interrupted", **common)
    loaded = s.order(check, "resumed", world_size=other, **common)
    return never_saved, saved, loaded, f"stopped after {stop} steps on {s.tier.world_size} ranks and resumed on {other}"


def _compare(due: dict, saved: list[dict], loaded: list[dict], why: str, tolerance: float) -> tuple[dict, str]:
    figures, cause = _first_difference(due, saved, "saved and not stopped", tolerance)
    if cause:
        return figures, f"`save` disturbs the run that goes on: {cause}"
    return _first_difference(due, loaded, why, tolerance)


def _first_difference(due: dict, loaded: list[dict], why: str, tolerance: float) -> tuple[dict, str]:
    """Return the figures, and the first difference in words; samples and rates come before losses and weights."""
    apart = [largest(abs(a / b - 1) for a, b in zip(r["losses"], due["losses"], strict=True)) for r in loaded]
    figures = {"losses afterwards, largest relative difference": (f"{max(apart):.1e}", f"{tolerance:g}")}
    for name, key in (("weights", "weights"), ("average of the weights", "average")):
        off = max(distance(vector(r[key]), vector(due[key])) for r in loaded)
        figures[f"{name} at the end"] = (f"{off:.1e} apart", f"{WEIGHT_TOLERANCE if tolerance else 0:g}")
    mine = loaded[0]
    if any(r["samples"] != due["samples"] for r in loaded):
        (epoch, taken), (epoch_due, taken_due) = mine["samples"], due["samples"]
        return figures, (
            f"{why}, the run ends at sample {taken} of epoch {epoch}, and should at sample {taken_due} of epoch "
            f"{epoch_due}: samples are seen twice, or left out."
        )
    rates = [(a, b) for r in loaded for a, b in zip(r["rates"], due["rates"], strict=True) if abs(a - b) > 1e-12]
    if rates:
        return figures, f"{why}, a step's learning rate is {rates[0][0]:.6f}, and should be {rates[0][1]:.6f}."
    if max(apart) > tolerance:
        return figures, f"{why}, {_first_loss(loaded, due, tolerance)}"
    for name, key in (("weights", "weights"), ("average of the weights", "average")):
        off = max(distance(vector(r[key]), vector(due[key])) for r in loaded)
        if off > (WEIGHT_TOLERANCE if tolerance else 0):
            return figures, f"{why}, all losses are right, but the {name} is another one at the end ({off:.1e} apart)."
    return figures, ""


def _first_loss(loaded: list[dict], due: dict, tolerance: float) -> str:
    first = [abs(r["losses"][0] / due["losses"][0] - 1) for r in loaded]
    figures = f"({loaded[0]['losses'][0]:.6f}, and not {due['losses'][0]:.6f})"
    if max(first) <= tolerance:
        return "the first loss is right and a later one is not: what the update uses besides the gradient is missing."
    if max(first) < 0.02:
        return f"the first loss is nearly right {figures}: the weights and the samples are, the noise is not."
    return f"the first loss is wrong already {figures}: other weights or other samples."
