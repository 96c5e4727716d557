"""Part 2: judge whether the biases follow all ranks' load, equally on all ranks, for a few numbers sent."""

from grading.checks.errors_with_nan import largest
from grading.checks.lab7_debug import experts_training as run
from grading.judge.session import Session
from grading.judge.tensor_projections import distance, vector
from grading.judge.verdict import Verdict

TOLERANCE = 1e-3  # relative, of the weights; a bias may be off by a hundredth of its step
MESSAGE_BYTES = 4096


def judge(s: Session, check: str, points: float) -> Verdict:
    """Give half of the points if the only fault is that too much is sent."""
    replies, due = (ask("experts", seed=s.seed) for ask in (lambda *a, **k: s.order(check, *a, **k), s.order_reference))
    mine, right = [r["biases"] for r in replies], due[0]["biases"]
    disagree = max(_apart(a, mine[0]) for a in mine)
    figures = {
        "biases, largest difference between ranks": (f"{disagree / run.SPEED:.2f} steps", "0.00 steps"),
        "biases, largest difference from the right ones": (
            f"{_apart(mine[0], right) / run.SPEED:.2f} steps",
            "0.00 steps",
        ),
    }
    cause = _wrong_biases(s, mine, right, disagree)
    if (
        not cause
        and (off := max(distance(vector(r["weights"]), vector(due[0]["weights"])) for r in replies)) > TOLERANCE
    ):
        cause = f"the biases are right, but the weights are not those of the same training ({off:.1e} apart)."
    if cause:
        return Verdict(check, 0, points, cause, "", figures)
    messages, n_bytes, allowed, allowed_bytes = _traffic(replies, due)
    figures["collectives"] = (f"{messages}", f"{allowed}: FSDP's, and one for each layer and step")
    figures["bytes sent by a rank"] = (f"{n_bytes:,.0f}", f"{allowed_bytes:,.0f}")
    if messages <= allowed and n_bytes <= allowed_bytes:
        cause = "all ranks hold the same biases, made from the load of all of them, for a few bytes."
        return Verdict(check, points, points, cause, "", figures)
    much = f"{messages - allowed} collectives" if messages > allowed else f"{n_bytes - allowed_bytes:,.0f} bytes"
    cause = (
        f"the biases are right, but {much} more than allowed are sent: a step needs {run.N_EXPERTS} numbers a layer."
    )
    return Verdict(check, points / 2, points, cause, "", figures)


def _traffic(replies: list[dict], due: list[dict]) -> tuple[int, float, int, float]:
    extra = run.N_LAYERS * run.N_STEPS
    fsdp = due[0]["collectives"] - run.N_STEPS  # the reference sends all layers' loads together
    messages, n_bytes = max(r["collectives"] for r in replies), max(r["bytes"] for r in replies)
    return messages, n_bytes, fsdp + extra, due[0]["bytes"] + MESSAGE_BYTES * extra


def _wrong_biases(s: Session, mine: list, right: list, disagree: float) -> str:
    first, slack = mine[0], run.SPEED / 100
    if disagree <= slack and _apart(first, right) <= slack:
        return ""
    if not any(b for m in mine for layer in m for b in layer):
        return "all biases are still 0: nothing keeps the experts in balance any more."
    if disagree > slack:
        return "the ranks hold different biases: each still follows the load that it has seen itself."
    ratios = [b / run.SPEED for layer in first for b in layer]
    if any(abs(x - round(x)) > 0.01 for x in ratios):
        return (
            "the ranks agree, but a bias is no whole number of steps: it is the mean of what ranks have decided, where "
            "one decision, from the load of all, is wanted."
        )
    lone = s.order_reference("experts_of_rank_0", seed=s.seed)[0]["biases"]
    if _apart(first, lone) <= slack:
        return "the ranks agree, on what rank 0 has seen alone: the load of all other ranks counts for nothing."
    return "the ranks agree, but their biases do not follow the load of all tokens of all ranks since the last step."


def _apart(a: list, b: list) -> float:
    if [len(x) for x in a] != [len(x) for x in b]:
        return float("inf")
    return largest(abs(x - y) for xs, ys in zip(a, b, strict=True) for x, y in zip(xs, ys, strict=True))
