"""Judge the scaling efficiency of tables of runs drawn at grading time: weak and strong, from one rank or from more."""

import random
from math import inf, isfinite

from grading.checks.lab4_fsdp.refused_finished_code import in_words
from grading.judge.session import Session
from grading.judge.verdict import Verdict

CLOSE = 0.002  # relative
KINDS = ("weak", "strong")
TABLES = 4  # of each kind
RUNS = 4  # of a table
FACTORS = ("micro_batch", "accumulation", "seq_len")


def judge(s: Session, check: str, points: float) -> Verdict:
    """Give half of the points for each kind of scaling."""
    tables = {kind: tables_of(s.seed, kind) for kind in KINDS}
    every = [table for kind in KINDS for table in tables[kind]]
    reply = s.order(check, "efficiency", world_size=1, device="cpu", tables=every)[0]
    if used := in_words([reply]):
        return Verdict(check, 0, points, used)
    replies = reply["efficiencies"]
    found = dict(zip(KINDS, (replies[:TABLES], replies[TABLES:]), strict=True))
    known = {kind: s.solve("efficiencies", tables[kind]) for kind in KINDS}
    off = {kind: _worst(found[kind], known[kind]["right"]) for kind in KINDS}
    figures = {f"{kind} scaling, relative error": (f"{error:.2g}", f"{CLOSE:g}") for kind, error in off.items()}
    right = [kind for kind in KINDS if off[kind] <= CLOSE]
    if len(right) == len(KINDS):
        return Verdict(check, points, points, "right for weak and strong scaling, from any yardstick.", "", figures)
    wrong = next(kind for kind in KINDS if kind not in right)
    cause = _cause(wrong, found[wrong], known[wrong])
    return Verdict(check, points * len(right) / len(KINDS), points, cause, "", figures)


def tables_of(seed: int, kind: str) -> list[list[dict]]:
    """Draw tables of runs, in any order. Each has its own smallest number of ranks, and none is first in its table.

    Weak scaling: a rank's tokens stay, and two of the three factors change. Strong scaling: one factor or two shrink.
    """
    draw = random.Random(f"{kind} {seed}")
    fewest = draw.sample((1, 2, 3, 4), TABLES)
    counts = draw.sample((5, 6, 7, 8), TABLES)
    return [
        _table(draw, kind, i, first, n_steps) for i, (first, n_steps) in enumerate(zip(fewest, counts, strict=True))
    ]


def _table(draw: random.Random, kind: str, turn: int, first: int, n_steps: int) -> list[dict]:
    one_s, runs = draw.uniform(0.5, 3.0), []
    factors = [*FACTORS[turn % 3 :], *FACTORS[: turn % 3]]
    for i in range(RUNS):
        tokens = {"micro_batch": 32, "accumulation": 16, "seq_len": 2048}
        tokens[factors[i % 2]] //= 2**i
        tokens[factors[2]] *= 2**i if kind == "weak" else 1
        usual = one_s * (0.2 * i + (1 if kind == "weak" else 2**-i))
        steps = [usual * draw.uniform(0.95, 1.05) for _ in range(n_steps + i)]
        steps[draw.randrange(1, len(steps))] *= 3  # a checkpoint was written, so use the median
        runs.append({"ranks": first * 2**i, "step_s": [4 * usual, *steps]} | tokens)
    draw.shuffle(runs)
    if runs[0]["ranks"] == first:
        runs.append(runs.pop(0))
    return runs


def _worst(replies: list[dict], due: list[dict]) -> float:
    """Return the largest relative error; infinity if ranks are missing or extra, or a value is not finite."""
    worst = 0.0
    for reply, right in zip(replies, due, strict=True):
        if right.keys() != reply.keys() or not all(map(isfinite, reply.values())):
            return inf
        worst = max([worst, *(abs(reply[n] / right[n] - 1) for n in right)])
    return worst


def _cause(kind: str, replies: list[dict], known: dict) -> str:
    for words, wrong in known["mistakes"].items():
        if _worst(replies, wrong) <= CLOSE:
            return f"{kind} scaling: {words}."
    if any(right.keys() != reply.keys() for reply, right in zip(replies, known["right"], strict=True)):
        return f"{kind} scaling: there must be one efficiency for each number of ranks in the table."
    if not all(isfinite(e) for reply in replies for e in reply.values()):
        return f"{kind} scaling: an efficiency is not a finite number."
    return f"{kind} scaling: the efficiency is wrong, and not by one of the usual mistakes."
