"""Judge the bytes that each rank holds, after a step and at its peak."""

from grading.checks.lab3_zero import on_ranks, step_and_buckets
from grading.judge.hidden_memory import hidden_bytes, in_words
from grading.judge.session import Session
from grading.judge.verdict import Verdict
from grading.judge.verdict_pictures import of_memory
from shardplan.compare_formulas import mib

SPARE_MEMORY = 4 << 20  # allowed a rank: copies of messages by gloo were up to 3.0 MiB, a copy of all weights adds 3.3
CLAIMS = {"peak_bytes": lambda r: _total(r["peak"]), "held_bytes": lambda r: _total(r["held"])}


def judge(s: Session, check: str, points: float) -> Verdict:
    """Give half the points for the bytes held after the step, half for the peak; none if the record leaves much out."""
    replies, figures, causes = step_and_buckets.record(s, check), {}, []
    seen = s.watch(check, "memory", **step_and_buckets.arguments(s)).replies
    believed = dict(CLAIMS)
    for what, name, cause in (("held", "held after a step", _held_cause), ("peak", "peak", _peak_cause)):
        got = [max(_total(a[what]), _total(b[what])) for a, b in zip(replies, seen, strict=True)]
        allowed = [on_ranks.budget_bytes(s.tier.name, what, fraction) for fraction in step_and_buckets.fractions(s)]
        rank = max(range(len(got)), key=lambda rank: got[rank] - allowed[rank])
        figures[f"{name}, rank {rank}"] = (mib(got[rank]), mib(allowed[rank]))
        if got[rank] > allowed[rank]:
            causes.append(cause(s, replies[rank][what], rank, got[rank] - allowed[rank]))
            del believed[f"{what}_bytes"]
    got = points * (1 - len(causes) / 2)
    replicated = s.watch_reference("memory", **step_and_buckets.arguments(s)).replies[rank]
    steps = {f"yours, rank {rank}": seen[rank]["moments"], "where every rank does everything": replicated["moments"]}
    picture = of_memory(steps, allowed[rank])
    if got and (hidden := hidden_bytes(s, check, "memory", believed, SPARE_MEMORY, **step_and_buckets.arguments(s))):
        return Verdict(check, 0, points, in_words(hidden), "", figures, picture=picture)
    kept = "every rank holds the whole weights, its own share of the states, and a few buckets for a while."
    return Verdict(check, got, points, " ".join(causes) or kept, "", figures, picture=picture)


def _held_cause(s: Session, held: dict, rank: int, excess: float) -> str:
    psi, fraction = step_and_buckets.psi_bytes(s.tier.name), step_and_buckets.fractions(s)[rank]
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
    psi = step_and_buckets.psi_bytes(s.tier.name)
    parts = {name: n / psi for name, n in peak.items() if name not in ("where", "parameters") and n > 0.05 * psi}
    listed = ", ".join(f"{name} {x:.2f}" for name, x in sorted(parts.items(), key=lambda part: -part[1]))
    bucket = max(step_and_buckets.bucket_bytes(s.tier.name)) / psi
    where = {"other": "in step, or after backward", "optimizer": "in the optimizer's step"}
    return (
        f"at its peak, {where.get(peak['where'], 'in ' + peak['where'])}, rank {rank} holds {mib(excess)} too much. "
        f"Beside the weights there are, in units of theirs: {listed}. A bucket has at most {bucket:.2f}."
    )


def _total(categories: dict) -> int:
    return sum(int(n) for name, n in categories.items() if name != "where")
