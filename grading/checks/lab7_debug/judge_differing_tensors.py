"""Part 2, the tool: judge whether it finds exactly the tensors whose bits differ between ranks, and sends little."""

import random

from grading.checks.lab7_debug.tools_on_ranks import SHARDED, WHOLE
from grading.judge.session import Session
from grading.judge.verdict import Verdict

BYTES_A_TENSOR = 512  # bytes a tensor that a rank may put into its collectives


def judge(s: Session, check: str, points: float) -> Verdict:
    """Judge three searches in hybrid shards: nothing altered, whole tensors altered, and also shards altered."""
    figures, problem = {}, ""
    inner_alike = bool(s.seed % 2)
    for name, altered in searches(s).items():
        replies = s.order(check, "search", seed=s.seed, altered=altered, layouts=[inner_alike, not inner_alike])
        due = sorted({a[0] for a in altered})
        found = [sorted(r["found"]) for r in replies]
        figures[name] = (", ".join(found[0]) or "none found", ", ".join(due) or "none")
        put_in, allowed = max(r["bytes"] for r in replies), BYTES_A_TENSOR * replies[0]["tensors"]
        problem = problem or _problem(name, found, due, altered)
    figures["put into collectives by a rank"] = (f"{put_in:,d} bytes", f"{allowed:,d} bytes")
    if problem:
        return Verdict(check, 0, points, problem, "", figures)
    if put_in > allowed:
        cause = f"the names are right, but {put_in:,d} bytes are sent for {replies[0]['tensors']} tensors."
        return Verdict(check, points / 2, points, cause, "", figures)
    return Verdict(check, points, points, "every difference is found, and nothing else, for a few bytes.", "", figures)


def searches(s: Session) -> dict[str, list]:
    """Return [name, rank to alter, how, where] for each search. Only shards that are surely not empty are altered."""
    draw, n = random.Random(s.seed), s.tier.world_size
    ends, middle = (0, 1), (0.3, 0.4, 0.5, 0.6, 0.7)
    parity = draw.sample(("even byte", "odd byte"), 2)  # of two bytes in the middle

    def altered(name: str, how: str, where: tuple[float, ...]) -> list:
        return [name, draw.randrange(n), how, draw.choice(where)]

    floats, weight = draw.sample(("mean", "frozen"), 2), draw.choice(SHARDED[1:3])
    whole = [altered(floats[0], "order", ends + middle), altered("mask", "sign", ends + middle)]
    whole += [altered("count", parity[0], middle), altered("scale", parity[1], ends)]
    mixed = [altered(SHARDED[0], parity[0], middle), altered(weight, parity[1], middle)]
    mixed += [altered(draw.choice(SHARDED[3:]), draw.choice(parity), ends), altered(floats[1], parity[1], middle)]
    return {"nothing altered": [], "whole tensors altered": whole, "shards altered as well": mixed}


def _problem(name: str, found: list[list[str]], due: list[str], altered: list) -> str:
    if any(f != found[0] for f in found):
        return f"{name}: the ranks return different lists."
    extra, missed = sorted(set(found[0]) - set(due)), sorted(set(due) - set(found[0]))
    if strange := set(extra) - {*SHARDED, *WHOLE}:
        return f"{name}: the model has no tensor called {min(strange)!r}."
    if extra and set(extra) <= set(SHARDED):
        return (
            f"{name}: said to differ: {', '.join(extra)}. That is sharded, and all ranks that hold the same part of it "
            "hold the same bits."
        )
    if extra:
        return f"{name}: said to differ: {', '.join(extra)}. That is equal wherever it ought to be."
    if missed:
        how = {a[0]: a[2] for a in altered}[missed[0]]
        words = {
            "order": "its numbers are in another order on one rank, and their sum is the same",
            "sign": "a zero of it has become -0.0 on one rank, and `==` doesn't tell",
            "even byte": "one bit of it is different on one rank",
            "odd byte": "one bit of it is different on one rank",
        }
        shard = "; two replicas hold the same shard" if missed[0] in SHARDED else ""
        return f"{name}: {missed[0]} is not found: {words[how]}{shard}."
    return ""
