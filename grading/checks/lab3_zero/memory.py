"""Judge what one step holds, what it sends, and when: three checks of the same record, taken on the ranks."""

import math
from collections.abc import Callable
from functools import cache

import torch

from grading.checks.lab3_zero import on_ranks
from grading.judge.hidden_memory import hidden_bytes, in_words
from grading.judge.session import Session
from grading.judge.verdict import Verdict
from grading.judge.verdict_pictures import of_memory
from shardlab.ddp import assign_buckets
from shardplan.compare_formulas import mib

SPARE_COLLECTIVES = 4  # allowed beyond one a bucket, in each pass: buckets may close a parameter earlier or later
SMALL_COLLECTIVES, SMALL_BYTES = 4, 256  # messages that carry a norm or a flag
SPARE_BYTES = 4096  # allowed a bucket
HIDDEN_SHARE = 0.5  # share of the gradients' bytes that must overlap backward
REDUCING = ("all_reduce", "reduce", "reduce_scatter", "all_to_all")
SPARE_MEMORY = 3 << 20  # allowed a rank, for gloo's copies of messages; whole gradients would be twice as much
CLAIMS = {"peak_bytes": lambda r: _total(r["peak"]), "held_bytes": lambda r: _total(r["held"])}
PASSES = on_ranks.ACCOUNT_MICRO_BATCHES + 1  # passes over all buckets: one a backward, one for the weights


def judge_memory(s: Session, check: str, points: float) -> Verdict:
    """Give half the points for the bytes held after the step, half for the peak; none if the record leaves much out."""
    replies, seen, figures, causes = _account(s, check), s.watch(check, "memory", **_arguments(s)).replies, {}, []
    believed = dict(CLAIMS)
    for what, name, cause in (("held", "held after a step", _held_cause), ("peak", "peak", _peak_cause)):
        got = [max(_total(a[what]), _total(b[what])) for a, b in zip(replies, seen, strict=True)]
        allowed = [on_ranks.budget_bytes(s.tier.name, what, fraction) for fraction in _fractions(s)]
        rank = max(range(len(got)), key=lambda rank: got[rank] - allowed[rank])
        figures[f"{name}, rank {rank}"] = (mib(got[rank]), mib(allowed[rank]))
        if got[rank] > allowed[rank]:
            causes.append(cause(s, replies[rank][what], rank, got[rank] - allowed[rank]))
            del believed[f"{what}_bytes"]
    got = points * (1 - len(causes) / 2)
    replicated = s.watch_reference("memory", **_arguments(s)).replies[rank]
    steps = {f"yours, rank {rank}": seen[rank]["moments"], "where every rank does everything": replicated["moments"]}
    picture = of_memory(steps, allowed[rank])
    if got and (hidden := hidden_bytes(s, check, "memory", believed, SPARE_MEMORY, **_arguments(s))):
        return Verdict(check, 0, points, in_words(hidden), "", figures, picture=picture)
    kept = "every rank holds the whole weights, its own share of the states, and a few buckets for a while."
    return Verdict(check, got, points, " ".join(causes) or kept, "", figures, picture=picture)


def _held_cause(s: Session, held: dict, rank: int, excess: float) -> str:
    psi, fraction = psi_bytes(s.tier.name), _fractions(s)[rank]
    due = {"parameters": psi, "optimizer_states": 2 * psi * fraction}
    more = {name: (n - due.get(name, 0)) / psi for name, n in held.items()}
    most = max(more, key=more.get)
    words = {
        "optimizer_states": (
            f"states, and copies of weights that the optimizer has, take {held['optimizer_states'] / psi:.2f} times "
            f"the weights' bytes, where {2 * fraction:.2f} are due for this rank's {fraction:.3f} of the shares"
        ),
        "gradients": f"gradients of {more['gradients']:.2f} times the weights' bytes are still there",
    }
    otherwise = f"{more[most]:.2f} times the weights' bytes stay in buffers or copies"
    return f"after a step rank {rank} holds {mib(excess)} too much: {words.get(most, otherwise)}."


def _peak_cause(s: Session, peak: dict, rank: int, excess: float) -> str:
    psi = psi_bytes(s.tier.name)
    parts = {name: n / psi for name, n in peak.items() if name not in ("where", "parameters") and n > 0.05 * psi}
    listed = ", ".join(f"{name} {x:.2f}" for name, x in sorted(parts.items(), key=lambda part: -part[1]))
    whole_gradients = peak["where"] == "backward" or peak["gradients"] > 0.6 * psi
    likely = (
        "whole gradients, or the buckets on their way, pile up: wait for an old bucket, and drop it, before the next"
        if whole_gradients
        else "buffers of several buckets are there at once: gather one, use it, drop it"
    )
    where = {"other": "in step, or after backward", "optimizer": "in the optimizer's step"}
    return (
        f"at its peak, {where.get(peak['where'], 'in ' + peak['where'])}, rank {rank} holds {mib(excess)} too much. "
        f"Beside the weights there are, in units of theirs: {listed}. If what is held between steps is right, {likely}."
    )


def judge_traffic(s: Session, check: str, points: float) -> Verdict:
    """Judge the number of messages, and the bytes a rank sends."""
    collectives, n, psi = _account(s, check)[0]["collectives"], s.tier.world_size, psi_bytes(s.tier.name)
    buckets = bucket_bytes(s.tier.name)
    sent = [c for c in collectives if c["bytes"] > SMALL_BYTES]
    n_small, n_bytes = len(collectives) - len(sent), sum(c["sent"] for c in sent)
    n_allowed = PASSES * (len(buckets) + SPARE_COLLECTIVES)
    small_allowed = SMALL_COLLECTIVES + PASSES * sum(b <= SMALL_BYTES for b in buckets)
    bytes_allowed = PASSES * ((n - 1) * max(_fractions(s)) * psi + SPARE_BYTES * len(buckets))
    figures = {
        "collectives with gradients or weights": (f"{len(sent)}", f"{n_allowed}, for {len(buckets)} buckets"),
        f"collectives of at most {SMALL_BYTES} bytes": (f"{n_small}", f"{small_allowed}"),
        "bytes a rank sends": (mib(n_bytes), mib(bytes_allowed)),
    }
    if not any(c["kind"] in REDUCING for c in sent):
        cause = "no gradient was ever sent."
    elif n_bytes > bytes_allowed:
        cause = f"{n_bytes / bytes_allowed:.2f} times the bytes that are due: {_likely({c['kind'] for c in sent})}."
    elif len(sent) > n_allowed:
        cause = f"{len(sent)} messages, where {PASSES} times {len(buckets)} would do: each one pays the link's latency."
    elif n_small > small_allowed:
        cause = f"{n_small} small messages a step, where the norm takes one."
    else:
        cause = "gradients go to their owners and weights come back, in buckets, each once."
        return Verdict(check, points, points, cause, "", figures)
    return Verdict(check, 0, points, cause, "", figures)


def _likely(kinds: set[str]) -> str:
    if "all_reduce" in kinds:
        return "an all_reduce brings every rank all gradients, where it needs its own slices only"
    return "something goes out more than once, or slices are padded beyond the longest"


def judge_overlap(s: Session, check: str, points: float) -> Verdict:
    """Judge how many bytes overlap backward: sent, and not waited for, before a later gradient is made."""
    share, early = min((covered(r), issued_early(r)) for r in _account(s, check))
    figures = {"gradients that travel beside backward": (f"{share:.0%}", f"at least {HIDDEN_SHARE:.0%}")}
    if share >= HIDDEN_SHARE:
        return Verdict(check, points, points, "the network works while backward computes.", "", figures)
    cause = (
        "buckets are sent in time, but backward stands still until each has arrived: start it, and wait for it later."
        if early >= HIDDEN_SHARE
        else "most bytes are sent after backward is over, and so all are waited for: send a bucket when it is full."
    )
    return Verdict(check, 0, points, cause, "", figures)


def covered(reply: dict) -> float:
    """Return the share of the reduced bytes that overlap backward: a gradient is made between sending and waiting.

    Assumes that messages are waited for in the order in which they were sent.
    """
    waits = iter(reply["waits"])
    waited = {c["at"]: next(waits, math.inf) for c in sorted(reply["collectives"], key=lambda c: c["at"])}
    for_all = reply.get("device_waits", [])
    halted = {at: next((moment for moment in for_all if at < moment), math.inf) for at in waited}
    return _share(reply, lambda c: min(waited[c["at"]], halted[c["at"]], _backward_end(reply, c)))


def issued_early(reply: dict) -> float:
    """Return the share of the reduced bytes sent before the last gradient of their backward, waited for or not."""
    return _share(reply, lambda c: _backward_end(reply, c))


def _share(reply: dict, end: Callable[[dict], float]) -> float:
    """Return the share of the bytes in collectives with a gradient made between their start and `end`.

    An all_to_all after the last backward gathers weights, so it is not counted.
    """
    backwards = [c for c in reply["collectives"] if c["kind"] != "all_to_all" or c["at"] < reply["ends"][-1]]
    reducing = [c for c in backwards if c["kind"] in REDUCING and c["bytes"] > SMALL_BYTES]
    beside = [c for c in reducing if any(c["at"] < moment < end(c) for moment in reply["gradients"])]
    return sum(c["bytes"] for c in beside) / max(1, sum(c["bytes"] for c in reducing))


def _backward_end(reply: dict, c: dict) -> float:
    return next((end for end in reply["ends"] if c["at"] < end), 0.0)


def _account(s: Session, check: str) -> list[dict]:
    return s.order(check, "record_step", **_arguments(s))


def _arguments(s: Session) -> dict:
    tier, shares = s.tier.name, on_ranks.shares(s.seed, s.tier.world_size)
    cap_mb = on_ranks.of_tier(on_ranks.BUDGETS, tier)["bucket_cap_mb"]
    return dict(seed=s.seed, tier=tier, shares=shares, cap_mb=cap_mb)


def _fractions(s: Session) -> list[float]:
    shares = on_ranks.shares(s.seed, s.tier.world_size)
    return [x / sum(shares) for x in shares]


@cache
def _parameters(tier: str) -> list:
    with torch.device("meta"):
        return list(on_ranks.build(0, on_ranks.of_tier(on_ranks.SIZES, tier)).parameters())


def psi_bytes(tier: str) -> int:
    return sum(p.nbytes for p in _parameters(tier))


def bucket_bytes(tier: str) -> list[int]:
    cap_bytes = int(on_ranks.of_tier(on_ranks.BUDGETS, tier)["bucket_cap_mb"] * on_ranks.MIB)
    return [sum(p.nbytes for p in bucket) for bucket in assign_buckets(_parameters(tier), cap_bytes, cap_bytes)]


def _total(categories: dict) -> int:
    return sum(int(n) for name, n in categories.items() if name != "where")
