"""Part 1: compare the counts of a block's parameters and saved bytes with the true ones, byte by byte."""

import random

from grading.checks.errors_with_nan import largest
from grading.checks.lab1_memory import draw
from grading.checks.lab1_memory.judge_predictions import unreadable
from grading.judge.session import Session
from grading.judge.verdict import Verdict

NAMES = ("block_params", "root_params", "kept_bytes")
NEARLY = 0.05  # relative error for half of the points of kept_bytes
MULTIPLES = (1, 2, 3, 4, 5, 6, 8, 0.5)


def judge(s: Session, check: str, points: float) -> Verdict:
    setups = drawn(s.seed)
    replies = s.order(check, "predict", world_size=1, device="cpu", setups=setups)[0]
    if problem := unreadable(replies, 3, 1, "one number for each of the three functions"):
        return Verdict(check, 0, points, problem)
    truth = s.order_reference("count", world_size=1, device="cpu", setups=setups)[0]
    causes, share = [], {}
    for i, (name, key) in enumerate(zip(NAMES, ("block", "root", "kept"), strict=True)):
        mine, due = [r[i][0] for r in replies], [t[key] for t in truth]
        error = largest(abs(m / d - 1) for m, d in zip(mine, due, strict=True))
        share[name] = 1.0 if error < 1e-6 else 0.5 if name == "kept_bytes" and error <= NEARLY else 0.0
        if share[name] < 1:
            causes.append(f"{name} {_difference(name, setups, mine, due)}.")
    both = min(share["block_params"], share["root_params"])
    earned = points / 2 * (both + share["kept_bytes"])
    return Verdict(check, earned, points, " ".join(causes) or "all three are right, on three models that were drawn.")


def drawn(seed: int) -> list[dict]:
    random_of = random.Random(f"counts {seed}")
    return [draw.long(random_of), draw.worded(random_of), draw.wide(random_of)]


def _difference(name: str, setups: list[dict], mine: list[float], due: list[int]) -> str:
    """Describe the difference in multiples of a size, if one size explains it on all models; else as a ratio."""
    for words, size in _sizes(name).items():
        for k in MULTIPLES:
            for sign, side in ((-1, "too small"), (1, "too large")):
                pairs = zip(setups, mine, due, strict=True)
                if all(abs(m - d - sign * k * size(s)) <= 1e-6 * d for s, m, d in pairs):
                    return f"is {side} by {k:g} x {words}, on all models drawn"
    worst = max(range(len(due)), key=lambda i: abs(mine[i] / due[i] - 1))
    model = ", ".join(f"{k}={v}" for k, v in setups[worst].items() if k in "VDLHKEFBT")
    return f"is {mine[worst] / due[worst]:.3f} times what was counted for {model}"


def _sizes(name: str) -> dict:
    if name == "kept_bytes":
        tokens = {
            "B T D": lambda s: s["D"],
            "B T F": lambda s: s["F"],
            "B T K E": lambda s: s["K"] * s["E"],
            "B T H": lambda s: s["H"],
            "B T": lambda s: 1,
            "B T (H E - K E)": lambda s: s["D"] - s["K"] * s["E"],
        }
        return {
            f"{words} numbers of 4 bytes": lambda s, size=size: 4 * s["B"] * s["T"] * size(s)
            for words, size in tokens.items()
        }
    return {
        "V D": lambda s: s["V"] * s["D"],
        "D F": lambda s: s["D"] * s["F"],
        "D D": lambda s: s["D"] ** 2,
        "D K E": lambda s: s["D"] * s["K"] * s["E"],
        "D (H E - K E)": lambda s: s["D"] * (s["D"] - s["K"] * s["E"]),
        "D": lambda s: s["D"],
    }
