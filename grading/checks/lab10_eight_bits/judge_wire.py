"""Count the messages and bytes of a gather and of a reduce, on the ranks and from outside."""

from grading.boxes.rank_launcher_client import Watched
from grading.checks.lab10_eight_bits import on_ranks
from grading.checks.lab10_eight_bits.draw import Instance
from grading.judge.session import Session
from grading.judge.verdict import Verdict

MOST_MESSAGES, SPARE_BYTES = 4, 1024  # of a call, on each rank
FEWEST = 0.98  # of the codes that have to travel: all ranks together
SEEN = 0.23, 0.29  # bytes that the system counts, over float32's: 0.255 to 0.259 were measured; bf16 has 0.5


def judge(s: Session, check: str, points: float) -> Verdict:
    """Give half of the points for each of `gather` and `reduce`."""
    instance, n = on_ranks.wire_instance(s.seed, s.tier.world_size), s.tier.world_size
    causes, figures = {}, {}
    for call in ("gather", "reduce"):
        mine = s.watch(check, "wire", device="cpu", seed=s.seed, call=call)
        calls = [_of_call([reply["messages"][k] for reply in mine.replies]) for k in range(on_ranks.WIRE_CALLS)]
        everything = [sent for of_ranks in calls for sent in of_ranks]
        worst = max(everything, key=lambda sent: sum(n_bytes for _, n_bytes in sent))
        most = max(n_messages(sent, n) for sent in everything)
        figures[f"{call}: messages"] = (f"{most:g}", f"{MOST_MESSAGES}")
        figures[f"{call}: bytes sent"] = (f"{sum(b for _, b in worst):,.0f}", f"{budget(instance, n):,}")
        faults = [_fault(of_ranks, instance, n) for of_ranks in calls]
        causes[call] = next(filter(None, faults), "") or _seen(s, mine, call)
    got = points * sum(not words for words in causes.values()) / len(causes)
    cause = " ".join(f"`{call}`: {words}" for call, words in causes.items() if words)
    return Verdict(check, got, points, cause or "every number travels in eight bits, in few messages.", "", figures)


def _of_call(replies: list) -> list[list[tuple[str, float]]]:
    return [[(kind, float(n_bytes)) for kind, n_bytes in sent] for sent in replies]


def budget(instance: Instance, n: int) -> int:
    """Bytes that a rank may send in a call: a byte for each element of the longest shard, 4 for each scale, to all."""
    longest = max(b - a for a, b in zip(instance.cuts, instance.cuts[1:], strict=False))
    return (n - 1) * (longest + 4 * len(instance.group_sizes)) + SPARE_BYTES


def n_messages(sent: list[tuple[str, float]], n: int) -> float:
    """Return the collectives, and the most that go to or come from one other rank by send and recv."""
    by_hand = sum(kind in ("send", "recv") for kind, _ in sent)
    return len(sent) - by_hand + by_hand / (2 * (n - 1))


def _fault(of_ranks: list[list[tuple[str, float]]], instance: Instance, n: int) -> str:
    most, most_bytes = max(n_messages(sent, n) for sent in of_ranks), budget(instance, n)
    worst = max(sum(n_bytes for _, n_bytes in sent) for sent in of_ranks)
    if worst > most_bytes:
        times = worst / (most_bytes - SPARE_BYTES)
        kind = " (about two bytes for each number)" if 1.7 < times < 2.3 else ""
        kind = " (about four bytes for each number)" if 3.2 < times < 4.5 else kind
        return f"a rank sent {worst:,.0f} bytes, {times:.2f} times the budget{kind}."
    if most > MOST_MESSAGES:
        return f"{most:g} messages for {len(instance.shapes)} matrices: each waits for the link's latency."
    least = FEWEST * (n - 1) * sum(instance.sizes)
    if (together := sum(n_bytes for sent in of_ranks for kind, n_bytes in sent if kind != "store")) < least:
        return f"all ranks together sent {together:,.0f} bytes, less than the codes have: {least:,.0f}."
    return ""


def _seen(s: Session, mine: Watched, call: str) -> str:
    reference = s.watch_reference("wire", device="cpu", seed=s.seed, call=call)
    if mine.seen.wire_bytes is None or not reference.seen.wire_bytes:
        return ""
    share = mine.seen.wire_bytes / reference.seen.wire_bytes
    if SEEN[0] <= share <= SEEN[1]:
        return ""
    return f"by the system's count the ranks sent {share:.2f} times as much as in float32: the record has not all."
