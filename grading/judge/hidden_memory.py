"""Check whether the ranks' own reports of memory and what the system measured explain each other.

Reports are made on the ranks, where a submission can forge them. The system's counts cannot be forged, but they
include Python and all modules, and do not tell tensors apart. So this compares differences: what the system measured
beyond the report may be as much as for the reference, whose ranks do the same work and report the truth. It may not be
far less either: then the report tells of tensors that were never there, of work that was not done. A report that is no
number of bytes is above no budget and below none, so it is refused.
"""

import math
from collections.abc import Callable

from grading.boxes.rank_launcher_client import Watched
from grading.judge.session import Session

MIB = 1 << 20
LOOKS = 3  # hidden bytes show in every look; other noise does not, and one look may miss a short peak
NEVER_THERE = 0.25  # share of the report that no look finds; at least twice the spare bytes


def hidden_bytes(
    s: Session, check: str, drill: str, claims: dict[str, Callable[[dict], float]], spare_bytes: float, **arguments
) -> float:
    """Return the bytes a rank that no report explains; 0 if at most `spare_bytes`, or if nothing could be measured.

    Negative: so many bytes a rank are in the report, and were never there.

    `claims`: name of a field of `Seen` -> function from one rank's reply to the bytes that it reports.
    """
    mine, reference = [], []
    for look in range(LOOKS):
        mine.append(s.watch(check, drill, look, **arguments))
        reference.append(s.watch_reference(drill, look, **arguments))
        found = [_compare(mine, reference, name, claimed) for name, claimed in claims.items()]
        hidden = max(more for more, _, _ in found)
        invented = max(less if less > max(2 * spare_bytes, NEVER_THERE * report) else 0.0 for _, less, report in found)
        if hidden <= spare_bytes and not invented:
            return 0.0
    return hidden if hidden > spare_bytes else -invented


def _compare(
    mine: list[Watched], reference: list[Watched], name: str, claimed: Callable[[dict], float]
) -> tuple[float, float, float]:
    """Return bytes a rank: hidden in every look, reported and found in no look, and reported. Zeros if not measured.

    Hidden is the least of all looks at the submission less the most of those at the reference, and the reverse.
    """
    left_out, usual = ([_left_out(w, looks[0], name, claimed) for w in looks] for looks in (mine, reference))
    if None in left_out + usual:
        return 0.0, 0.0, 0.0
    report = sum(map(claimed, mine[0].replies)) / len(mine[0].replies)
    return min(left_out) - max(usual), min(usual) - max(left_out), report


def _left_out(watched: Watched, judged: Watched, name: str, claimed: Callable[[dict], float]) -> float | None:
    """Bytes a rank that were measured but not in the report of the `judged` look, which alone earns points.

    Raises ValueError for a report that is not finite.
    """
    seen, report = getattr(watched.seen, name), sum(map(claimed, judged.replies))
    if not math.isfinite(report):
        raise ValueError(f"the ranks report {report} bytes")
    return None if seen is None else (seen - report) / len(judged.replies)


def in_words(n_bytes: float) -> str:
    if n_bytes < 0:
        return (
            f"the ranks report {-n_bytes / MIB:.1f} MiB a rank more than the system ever saw: the report was changed, "
            "or what it tells of was not done."
        )
    return (
        f"the system saw {n_bytes / MIB:.1f} MiB a rank more than your tensors' bytes explain: memory that no "
        "operation of torch touches, a module that you import on the ranks, or a report that was changed."
    )
