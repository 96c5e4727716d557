"""Part 2: judge whether the biases follow all ranks' load, equally on all ranks, for a few numbers sent."""

from collections import Counter

from grading.checks.errors_with_nan import largest
from grading.checks.lab7_debug import experts_on_ranks as run
from grading.judge.session import Session
from grading.judge.tensor_projections import distance, factor, parallel, vector
from grading.judge.verdict import Verdict

TOLERANCE = 1e-2  # relative, of the weights' way; a bias may be off by a hundredth of its step
MESSAGE_BYTES = 4096
MISTAKES = {
    "alone": "on each rank they follow the load that it has seen itself.",
    "by rank 0": "they follow what rank 0 has seen alone: the load of all other ranks counts for nothing.",
    "mean of decisions": "they are the mean of what ranks decide, each by the load that it has seen itself.",
}


def judge(s: Session, check: str, points: float) -> Verdict:
    """Give half of the points if the only fault is that too much is sent."""
    replies, due, plain = s.order(check, "experts", seed=s.seed), _truth(s), s.order_reference("experts", seed=s.seed)
    mine, right, speed = [r["biases"] for r in replies], due[0]["biases"], run.speed_of(s.seed)
    off = max(_apart(a, right) for a in mine) / speed
    right_way = vector(due[0]["way"])
    worst = max((vector(r["way"]) for r in replies), key=lambda way: distance(way, right_way))
    moved = distance(worst, right_way)
    figures = {
        "biases, largest difference from the right ones": (f"{off:.2f} steps", "0.00 steps"),
        "weights' way, relative error": (f"{moved:.1e}", f"{TOLERANCE:g}"),
    }
    # the first layer's loads are planned: only those of the others change with the weights
    first_right = all(_apart(a[:1], right[:1]) <= speed / 100 for a in mine)
    if moved > TOLERANCE and first_right:
        cause = f"the first layer's biases are right, but {_wrong_way(worst, right_way)}"
    else:
        cause = _wrong_biases(s, mine, speed) if not off <= 0.01 else ""
    if cause:
        return Verdict(check, 0, points, cause, "", figures)
    extra = max((_extra(r, plain[0]) for r in replies), key=lambda e: (len(e), max(e, default=0)))
    longest, allowed = max(max(_extra(r, plain[0]), default=0) for r in replies), run.N_LAYERS * run.N_STEPS
    figures["collectives besides FSDP's"] = (f"{len(extra)}", f"{allowed}: one for each layer and step")
    figures["the longest of them"] = (f"{longest:,d} bytes", f"{MESSAGE_BYTES:,d} bytes")
    if len(extra) <= allowed and longest <= MESSAGE_BYTES:
        cause = "all ranks hold the same biases, made from the load of all of them, for a few bytes."
        return Verdict(check, points, points, cause, "", figures)
    much = (
        f"a rank sends {len(extra)} collectives besides FSDP's, and {allowed} are allowed"
        if len(extra) > allowed
        else f"a collective besides FSDP's has {longest:,d} bytes, and {MESSAGE_BYTES:,d} are allowed"
    )
    cause = f"the biases are right, but {much}: a step needs {run.N_EXPERTS} numbers a layer."
    return Verdict(check, points / 2, points, cause, "", figures)


def _truth(s: Session, decision: str = "by all") -> list[dict]:
    return s.order_reference("experts_truth", seed=s.seed, decision=decision)


def _extra(reply: dict, plain: dict) -> list[int]:
    """Return the bytes of each collective that a training without balancing does not make."""
    fsdp = Counter((kind, size) for kind, size in plain["collectives"])
    mine = Counter((kind, size) for kind, size in reply["collectives"])
    return [size for _, size in (mine - fsdp).elements()]


def _wrong_way(mine, due) -> str:
    if parallel(mine, due, TOLERANCE):
        return f"the weights have moved {factor(mine, due):.2f} times as far as in the same training, the same way."
    return f"the weights are not those of the same training: their way is {distance(mine, due):.1e} apart from it."


def _wrong_biases(s: Session, mine: list, speed: float) -> str:
    if not any(b for m in mine for layer in m for b in layer):
        return "all biases are still 0."
    for decision, words in MISTAKES.items():
        theirs = [r["biases"] for r in _truth(s, decision)]
        if all(_apart(a, b) <= speed / 100 for a, b in zip(mine, theirs, strict=True)):
            return f"the biases are wrong: {words}"
    if any(_apart(a, mine[0]) > speed / 100 for a in mine):
        return "the ranks hold different biases."
    if odd := [b for layer in mine[0] for b in layer if not abs(b / speed - round(b / speed)) <= 0.01]:
        return f"the ranks agree, but a bias changes by exactly speed, {speed}, or not at all, and one is {odd[0]:.4f}."
    return "the ranks agree, but their biases do not follow the load of all tokens of all ranks since the last step."


def _apart(a: list, b: list) -> float:
    if [len(x) for x in a] != [len(x) for x in b]:
        return float("inf")
    return largest(abs(x - y) for xs, ys in zip(a, b, strict=True) for x, y in zip(xs, ys, strict=True))
