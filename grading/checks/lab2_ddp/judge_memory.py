"""Compare what a step holds with torch's DDP with views, by the record of the ranks and by the system's counts."""

from functools import cache

from grading.checks.lab2_ddp import on_ranks
from grading.judge.hidden_memory import hidden_bytes, in_words
from grading.judge.session import Session
from grading.judge.verdict import Verdict
from grading.judge.verdict_pictures import of_memory
from shardplan.compare_formulas import mib

SLACK = 0.4  # allowed above torch DDP's bytes, in units of the gradients' bytes; a second copy would be 1.0
HIDDEN = 0.6  # in the same units: allowed bytes that the system saw and no record explains
CLAIMS = {"peak_bytes": lambda r: _total(r["peak"]), "held_bytes": lambda r: _total(r["resident"])}


def judge(s: Session, check: str, points: float) -> Verdict:
    """Judge the peak, what is left after the step, and where the gradients lie."""
    arguments = dict(seed=s.seed, cap_mb=on_ranks.cap_mb(s.seed))
    replies, ours = s.watch(check, "memory", **arguments).replies, s.watch_reference("memory", **arguments).replies[0]
    slack, worst = SLACK * _gradient_bytes(), max(replies, key=lambda r: _total(r["peak"]))
    peak, kept = _total(worst["peak"]), max(_total(r["resident"]) for r in replies)
    peak_bar, kept_bar = (_total(ours[k]) + slack for k in ("peak", "resident"))
    figures = {
        "peak": (mib(peak), mib(peak_bar)),
        "held after the step": (mib(kept), mib(kept_bar)),
    }
    steps = {f"yours, rank {replies.index(worst)}": worst["moments"], "torch's DDP, with views": ours["moments"]}
    picture = of_memory(steps, peak_bar)
    if peak > peak_bar:
        cause = f"at the peak of a step there are {_excess(worst['peak'], ours['peak'])}."
    elif kept > kept_bar:
        fullest = max(replies, key=lambda r: _total(r["resident"]))
        cause = f"after the step there are {_excess(fullest['resident'], ours['resident'])}."
    elif scattered := max(r["in_one_piece"].count(False) for r in replies):
        n_buckets = len(replies[0]["in_one_piece"])
        cause = (
            f"after the step the gradients of {scattered} of {n_buckets} buckets do not lie side by side in one "
            "buffer: p.grad lives in its bucket."
        )
    elif hidden := hidden_bytes(s, check, "memory", CLAIMS, HIDDEN * _gradient_bytes(), **arguments):
        cause = in_words(hidden)
    else:
        cause = "no more is held than with torch's DDP and its views."
        return Verdict(check, points, points, cause, "", figures, picture=picture)
    return Verdict(check, 0, points, cause, "", figures, picture=picture)


def _excess(mine: dict[str, int], ours: dict[str, int]) -> str:
    more = {name: n - ours.get(name, 0) for name, n in mine.items()}
    excess = _total(mine) - _total(ours)
    return (
        f"{mib(excess)} more than with torch's DDP and gradient_as_bucket_view, most of it in "
        f"{max(more, key=more.get)}: {excess / _gradient_bytes():.1f} times the gradients' size"
    )


@cache
def _gradient_bytes() -> int:
    return sum(
        p.nbytes for p in on_ranks.build(0, 0, on_ranks.ACCOUNT_SHAPE["n_layers"], size=on_ranks.WIDE).parameters()
    )


def _total(categories: dict[str, int]) -> int:
    return sum(int(v) for v in categories.values())
