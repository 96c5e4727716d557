"""Judge what each backward and `step` send: every bucket, once, at most so many bytes, and to its owners."""

from collections import Counter

from grading.checks.lab3_zero import on_ranks, step_and_buckets
from grading.checks.lab3_zero.step_and_buckets import SMALL_BYTES
from grading.judge.session import Session
from grading.judge.verdict import Verdict
from shardplan.compare_formulas import mib

SPARE_SMALL = 4  # messages of at most SMALL_BYTES in each pass, beside the buckets
SPARE_BYTES = 4096  # allowed a bucket


def judge(s: Session, check: str, points: float) -> Verdict:
    """Judge each pass (a backward, or `step`) of every rank: its messages and bytes; then what is updated where."""
    replies, figures = step_and_buckets.record(s, check), {}
    by_rank = [step_and_buckets.passes(reply) for reply in replies]
    cause = ""
    for k in range(len(by_rank[0])):
        words = "`step`" if k == len(by_rank[0]) - 1 else f"backward {k + 1}"
        for rank, parts in enumerate(by_rank):
            counts, found = _fault(s, parts[k], words)
            figures |= counts if not rank or found else {}
            cause = cause or (found and f"rank {rank}: {found}")
            if cause:
                return Verdict(check, 0, points, cause, "", figures)
    if cause := _wrong_owner(s, replies):
        return Verdict(check, 0, points, cause, "", figures)
    cause = "gradients go to their owners and weights come back, in buckets, each once."
    return Verdict(check, points, points, cause, "", figures)


def _fault(s: Session, sent: list[dict], words: str) -> tuple[dict, str]:
    """Return the figures of one pass, and what is wrong with it ("" if nothing)."""
    tier = s.tier.name
    buckets, psi = step_and_buckets.bucket_bytes(tier), step_and_buckets.psi_bytes(tier)
    large = [c for c in sent if c["bytes"] > SMALL_BYTES]
    n_large, in_large = sum(b > SMALL_BYTES for b in buckets), sum(b for b in buckets if b > SMALL_BYTES)
    whole = sum(c["bytes"] for c in large if c["kind"] != "store")
    n_bytes = sum(c["sent"] for c in sent)
    most = (s.tier.world_size - 1) * max(step_and_buckets.fractions(s)) * psi + SPARE_BYTES * len(buckets)
    figures = {
        f"{words}: messages": (f"{len(sent)}", f"{len(buckets) + SPARE_SMALL}"),
        f"{words}: messages of more than {SMALL_BYTES} bytes": (f"{len(large)}", f"{n_large}"),
        f"{words}: bytes a rank sends": (mib(n_bytes), mib(most)),
    }
    kinds = ", ".join(f"{n} {kind}" for kind, n in Counter(c["kind"] for c in sent).most_common()) or "no message"
    if whole < in_large:
        what = "gradients" if "backward" in words else "weights"
        return figures, f"the messages of {words} carry {mib(whole)} of the {mib(psi)} of {what}: {kinds}."
    if n_bytes > most:
        return figures, f"{words} sends {n_bytes / most:.2f} times the bytes that are allowed: {kinds}."
    if len(large) > n_large:
        return figures, f"{words} sends {len(large)} messages, where {n_large} buckets would do: {kinds}."
    if len(sent) > len(buckets) + SPARE_SMALL:
        n = len(sent) - len(large)
        return figures, f"{words} sends {n} messages of at most {SMALL_BYTES} bytes: {kinds}."
    return figures, ""


def _wrong_owner(s: Session, replies: list[dict]) -> str:
    """Return in words what a rank updates and does not own, or owns and does not update; "" if there is nothing.

    Of copies only the number is known.
    """
    shares = on_ranks.shares(s.seed, s.tier.world_size)
    for rank, reply in enumerate(replies):
        due = step_and_buckets.pieces(s.tier.name, shares, rank)
        n_due, n_found = sum(end - start for _, start, end in due), reply["updates"]
        if reply["in_copies"] and n_found == n_due:
            continue
        mine = [tuple(piece) for piece in reply["pieces"]]
        if mine != due:
            i = min(set(mine) ^ set(due))[0]
            theirs = [[(start, end) for j, start, end in these if j == i] for these in (mine, due)]
            return (
                f"rank {rank}'s optimizer updates {n_found} elements, and the rank owns {n_due}. Of "
                f"{step_and_buckets.name(s.tier.name, i)} it updates {theirs[0]}, and by `owned` these are {theirs[1]}."
            )
    return ""
