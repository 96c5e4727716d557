"""Judge when buckets are sent and waited for: of the bytes of each backward, how many travel beside it."""

import math
from collections.abc import Callable, Iterator

from grading.checks.lab3_zero import step_and_buckets
from grading.checks.lab3_zero.step_and_buckets import SMALL_BYTES
from grading.judge.session import Session
from grading.judge.verdict import Verdict
from shardplan.compare_formulas import mib

HIDDEN_SHARE = 0.5  # of the gradients' bytes must travel beside each backward


def judge(s: Session, check: str, points: float) -> Verdict:
    """Judge the worst backward of the worst rank; then, whether a bucket was sent late."""
    replies = step_and_buckets.record(s, check)
    share, early = min((covered(r), issued_early(r)) for r in replies)
    figures = {"gradients that travel beside backward": (f"{share:.0%}", f"at least {HIDDEN_SHARE:.0%}")}
    if share < HIDDEN_SHARE:
        cause = (
            f"{early:.0%} of the bytes are sent before the last gradient is made, but your code waits for most of them "
            "before one more gradient is made: start the message, and wait for it later."
            if early >= HIDDEN_SHARE
            else f"{early:.0%} of the bytes are sent before the last gradient is made: send a bucket when it is full."
        )
        return Verdict(check, 0, points, cause, "", figures)
    for rank, reply in enumerate(replies):
        for k, late in enumerate(
            late_bytes(reply, step_and_buckets.buckets(s.tier.name), step_and_buckets.bucket_bytes(s.tier.name))
        ):
            if late:
                cause = (
                    f"rank {rank}, backward {k + 1}: when a later gradient was made, {mib(late)} of full buckets were "
                    "not sent yet: send a bucket as soon as its last gradient is there."
                )
                return Verdict(check, 0, points, cause, "", figures)
    return Verdict(check, points, points, "the network works while backward computes.", "", figures)


def covered(reply: dict) -> float:
    """Return the share of the sent bytes that overlap backward: a gradient is made between sending and waiting.

    Of several backwards, the smallest share.
    """
    return min(_share(part, moments, lambda c: c["waited"]) for part, moments in _backwards(reply))


def issued_early(reply: dict) -> float:
    """Return the share of the bytes sent before the last gradient of their backward, waited for or not."""
    return min(_share(part, moments, lambda c: math.inf) for part, moments in _backwards(reply))


def late_bytes(reply: dict, buckets: list[list[int]], sizes: list[int]) -> list[int]:
    """Return for each backward the most bytes that full buckets had and that were not sent when a gradient was made."""
    most = []
    for part, moments in _backwards(reply):
        made = [max((at for i, at in moments if i in bucket), default=math.inf) for bucket in buckets]
        missing = 0
        for _, moment in moments:
            full = sum(size for size, last in zip(sizes, made, strict=True) if last < moment and size > SMALL_BYTES)
            missing = max(missing, full - sum(c["bytes"] for c in part if c["at"] < moment))
        most.append(missing)
    return most


def _backwards(reply: dict) -> Iterator[tuple[list[dict], list[tuple[int, float]]]]:
    """Yield each backward's large messages, and its gradients as (parameter, time)."""
    begin = -math.inf
    for part, end in zip(step_and_buckets.passes(reply), reply["ends"], strict=False):
        large = [c for c in part if c["bytes"] > SMALL_BYTES]
        yield large, [(i, at) for i, at in reply["gradients"] if begin < at <= end]
        begin = end


def _share(part: list[dict], moments: list[tuple[int, float]], end: Callable[[dict], float]) -> float:
    """Return the share of the bytes with a gradient made between their sending and `end`."""
    beside = [c for c in part if any(c["at"] < at < end(c) for _, at in moments)]
    return sum(c["bytes"] for c in beside) / max(1, sum(c["bytes"] for c in part))
