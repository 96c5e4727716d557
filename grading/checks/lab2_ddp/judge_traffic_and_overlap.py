"""Judge what one step sends, and when: two checks of the same record, taken on the ranks.

The checks also use the bytes that the system counted on the ranks' network, and a step in which rank 0 is late.
"""

from collections import Counter
from functools import cache

from grading.boxes.rank_launcher_client import Watched
from grading.checks.lab2_ddp import on_ranks
from grading.judge.session import Session
from grading.judge.verdict import Verdict

SMALL_BYTES = 64  # a message this small carries no gradient
COUNT_BYTES = 8  # of the number of tokens
HIDDEN_SHARE = 0.5  # share of the gradients' bytes to be sent before the last gradient is made
WIRE = 0.8, 1.15  # allowed range of all bytes sent over torch DDP's, by the system's count


def judge_traffic(s: Session, check: str, points: float) -> Verdict:
    """Judge the number, kind, dtype and bytes of the messages of every rank, and the micro-batch in which they go."""
    due = _bucket_bytes(on_ranks.cap_mb(s.seed))
    of_ranks = [r["collectives"] for r in _account(s, check).replies]
    causes = [_fault(collectives, due, on_ranks.cap_mb(s.seed)) for collectives in of_ranks]
    rank = next((rank for rank, cause in enumerate(causes) if cause), 0)
    figures = _figures(of_ranks[rank], due, on_ranks.cap_mb(s.seed))
    if causes[rank]:
        return Verdict(check, 0, points, causes[rank] if all(causes) else f"rank {rank}: {causes[rank]}", "", figures)
    if (carried := _carried(s, check)) is not None and not WIRE[0] <= carried <= WIRE[1]:
        cause = (
            f"the collectives are right, but by the system's count the ranks sent {carried:.2f} times as much as with "
            "torch's DDP, so the collectives are not all that was sent."
        )
        return Verdict(check, 0, points, cause, "", figures)
    cause = "each gradient goes out once, in buckets, in the last micro-batch."
    return Verdict(check, points, points, cause, "", figures)


def _fault(collectives: list[dict], due: list[int], cap_mb: float) -> str | None:
    """Return what is wrong with a rank's messages in a step, in words; None if all is as the lab's text says."""
    sent, small = _split(collectives)
    sizes, total = [c["bytes"] for c in sent], sum(c["bytes"] for c in sent)
    early = sum(c["bytes"] for c in sent if c["micro_batch"] < on_ranks.ACCOUNT_SHAPE["count"] - 1)
    if not sent:
        return "no gradient was sent in the step."
    if early:
        return f"{early:,} bytes were sent before the last micro-batch: under no_sync no gradient is sent."
    if other := {c["kind"] for c in sent} - {"all_reduce"}:
        return f"gradients go out by an all_reduce, and {', '.join(sorted(other))} was called."
    if other := {c["dtype"] for c in sent} - {"Float"}:
        return f"gradients are sent as {', '.join(sorted(other))}, and not in their own dtype."
    if len(sent) > len(due):
        return f"{len(sent)} messages where {len(due)} buckets would do: each one pays the link's latency."
    if total != sum(due):
        return f"{total:,} bytes were sent, and the gradients, each sent once, have {sum(due):,}."
    if differ := Counter(sizes) - Counter(due):
        return (
            f"{len(due)} buckets are due, and {len(sent)} went out; {sum(differ.values())} have other sizes. A bucket "
            f"closes as soon as it holds {cap_mb:g} MiB, last parameter first."
        )
    if len(small) > 1 or any(c["bytes"] > COUNT_BYTES for c in small):
        shown = ", ".join(f"{c['kind']} of {c['bytes']} bytes" for c in small[:4])
        return f"beside the gradients only one number is sent, of at most {COUNT_BYTES} bytes; sent were: {shown}."
    return None


def _split(collectives: list[dict]) -> tuple[list[dict], list[dict]]:
    """Return the messages with gradients, and those too small to carry one."""
    return [c for c in collectives if c["bytes"] > SMALL_BYTES], [c for c in collectives if c["bytes"] <= SMALL_BYTES]


def _figures(collectives: list[dict], due: list[int], cap_mb: float) -> dict[str, tuple[str, str]]:
    sent, small = _split(collectives)
    early = sum(c["bytes"] for c in sent if c["micro_batch"] < on_ranks.ACCOUNT_SHAPE["count"] - 1)
    return {
        "collectives with gradients": (f"{len(sent)}", f"{len(due)}, for buckets of {cap_mb:g} MiB"),
        "gradient bytes sent": (f"{sum(c['bytes'] for c in sent):,}", f"{sum(due):,}"),
        "before the last micro-batch": (f"{early:,} bytes", "0 bytes"),
        "other messages": (f"{len(small)}", "1"),
    }


def _carried(s: Session, check: str) -> float | None:
    """Return the bytes that all ranks sent in the drill over torch DDP's; None if they could not be counted."""
    mine, reference = (w.seen.wire_bytes for w in (_account(s, check), reference_account(s)))
    return mine / reference if mine is not None and reference else None


def judge_overlap(s: Session, check: str, points: float) -> Verdict:
    """Judge how many bytes are sent while backward still computes, and whether backward waits for them."""
    share = min(_hidden_share(r["collectives"]) for r in _account(s, check).replies)
    figures = {"sent before the last gradient was made": (f"{share:.0%}", f"at least {HIDDEN_SHARE:.0%}")}
    if share < HIDDEN_SHARE:
        cause = (
            f"{1 - share:.0%} of the bytes are sent when backward has made its last gradient, and so all of them are "
            "waited for: send a bucket when it is full."
        )
    elif _waits_in_backward(s, check):
        cause = (
            "backward stands still while a message is on its way: one rank came late, and until then another made no "
            "more gradients. Wait when backward is over."
        )
    else:
        return Verdict(check, points, points, "the network works while backward computes.", "", figures)
    return Verdict(check, 0, points, cause, "", figures)


def _waits_in_backward(s: Session, check: str) -> bool:
    """Return True only if two runs, with another late rank each, show the wait: a machine may also stall a moment."""
    for seed in (s.seed, s.seed + 1):
        replies = s.order(check, "late_rank", seed=seed, cap_mb=on_ranks.cap_mb(s.seed))
        late = replies[seed % len(replies)]
        if all(r["last_gradient_s"] < late["woke_s"] for r in replies if r is not late):
            return False
    return True


def _account(s: Session, check: str) -> Watched:
    return s.watch(check, "record_step", seed=s.seed, cap_mb=on_ranks.cap_mb(s.seed))


def reference_account(s: Session) -> Watched:
    return s.watch_reference("record_step", seed=s.seed, cap_mb=on_ranks.cap_mb(s.seed))


def _hidden_share(collectives: list[dict]) -> float:
    """Return the share of the last micro-batch's bytes that was sent before the last gradient was made."""
    last = [c for c in _split(collectives)[0] if c["micro_batch"] == on_ranks.ACCOUNT_SHAPE["count"] - 1]
    return sum(c["bytes"] for c in last if c["before_last_gradient"]) / (sum(c["bytes"] for c in last) or 1)


@cache
def _bucket_bytes(cap_mb: float) -> list[int]:
    """Return the bytes of each bucket, in the order in which they close."""
    module = on_ranks.build(0, 0, on_ranks.ACCOUNT_SHAPE["n_layers"])
    return [sum(p.nbytes for p in bucket) for bucket in on_ranks.buckets_of(module, cap_mb)]
