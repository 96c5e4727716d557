"""Judge what one step sends, and when: two checks of the same record, taken on the ranks.

The checks also use the bytes that the system counted on the ranks' network, and a step in which rank 0 is late.
"""

from functools import cache

from grading.boxes.rank_launcher_outside import Watched
from grading.checks.lab2_ddp import on_ranks
from grading.judge.session import Session
from grading.judge.verdict import Verdict
from shardlab.ddp import MIB, assign_buckets

SPARE_COLLECTIVES = 3  # allowed beyond one a bucket: the token count, and buckets that close earlier or later
MISSING_COLLECTIVES = 2  # allowed below one a bucket; with fewer, the answer ignores bucket_cap_mb
COUNT_BYTES = 64  # a collective this small carries a count, not gradients
HIDDEN_SHARE = 0.5  # share of the gradients' bytes to be sent before the last gradient is made
WIRE = 0.8, 1.15  # allowed range of all bytes sent over torch DDP's, by the system's count


def judge_traffic(s: Session, check: str, points: float) -> Verdict:
    """Judge the number, dtype and bytes of the messages, and the micro-batch in which they are sent."""
    sent = [c for c in _account(s, check).replies[0]["collectives"] if c["bytes"] > COUNT_BYTES]
    early = [c for c in sent if c["micro_batch"] < on_ranks.ACCOUNT_SHAPE["count"] - 1]
    cap_mb, total = on_ranks.cap_mb(s.seed), sum(c["bytes"] for c in sent)
    n_buckets = _bucket_count(cap_mb)
    allowed = n_buckets + SPARE_COLLECTIVES
    figures = {
        "collectives with gradients": (
            f"{len(sent)}",
            f"{n_buckets - MISSING_COLLECTIVES} to {allowed}, for buckets of {cap_mb:g} MiB",
        ),
        "gradient bytes sent": (f"{total:,}", f"{_gradient_bytes():,}"),
        "before the last micro-batch": (f"{sum(c['bytes'] for c in early):,} bytes", "0 bytes"),
    }
    if not sent:
        cause = "no gradient was ever sent."
    elif early:
        cause = "gradients are sent in every micro-batch: under no_sync nothing but counts may go out."
    elif len(sent) > allowed:
        cause = f"{len(sent)} messages where {n_buckets} buckets would do: each one pays the link's latency."
    elif other := {c["dtype"] for c in sent} - {"Float"}:
        cause = f"gradients are sent as {', '.join(other)}, and not in their own dtype."
    elif total > _gradient_bytes():
        cause = (
            f"{total / _gradient_bytes():.2f} times the gradients' bytes were sent: something goes out more than once."
        )
    elif total < _gradient_bytes():
        cause = "fewer bytes were sent than there are gradients: some parameters are never reduced."
    elif len(sent) < n_buckets - MISSING_COLLECTIVES:
        cause = f"{n_buckets} buckets are due, and {len(sent)} went out: a bucket closes at bucket_cap_mb."
    elif (carried := _carried(s, check)) is not None and not WIRE[0] <= carried <= WIRE[1]:
        cause = (
            f"the collectives are right, but by the system's count the ranks sent {carried:.2f} times as much as with "
            "torch's DDP: something goes another way, or the account of collectives was tampered with."
        )
    else:
        cause = "each gradient goes out once, in buckets, in the last micro-batch."
        return Verdict(check, points, points, cause, "", figures)
    return Verdict(check, 0, points, cause, "", figures)


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
            "most bytes are sent after backward is over, and so all of them are waited for: "
            "send a bucket when it is full."
        )
    elif _waits_in_backward(s, check):
        cause = (
            "backward stands still while a message is on its way: rank 0 came late, and until then the others made no "
            "more gradients. Wait when backward is over."
        )
    else:
        return Verdict(check, points, points, "the network works while backward computes.", "", figures)
    return Verdict(check, 0, points, cause, "", figures)


def _waits_in_backward(s: Session, check: str) -> bool:
    """Return True only if two runs show the wait: a machine may also stall for a moment."""
    for seed in (s.seed, s.seed + 1):
        late, *others = s.order(check, "late_rank", seed=seed, cap_mb=on_ranks.cap_mb(s.seed))
        if all(r["last_gradient_s"] < late["woke_s"] for r in others):
            return False
    return True


def _account(s: Session, check: str) -> Watched:
    return s.watch(check, "record_step", seed=s.seed, cap_mb=on_ranks.cap_mb(s.seed))


def reference_account(s: Session) -> Watched:
    return s.watch_reference("record_step", seed=s.seed, cap_mb=on_ranks.cap_mb(s.seed))


def _hidden_share(collectives: list[dict]) -> float:
    return sum(c["bytes"] for c in collectives if c["before_last_gradient"]) / _gradient_bytes()


@cache
def _parameters() -> list:
    return list(on_ranks.build(0, 0, on_ranks.ACCOUNT_SHAPE["n_layers"]).parameters())


def _gradient_bytes() -> int:
    return sum(p.numel() * p.element_size() for p in _parameters())


def _bucket_count(cap_mb: float) -> int:
    return len(assign_buckets(_parameters(), int(cap_mb * MIB), int(cap_mb * MIB)))
