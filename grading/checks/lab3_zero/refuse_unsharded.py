"""Refuse an engine in which every rank updates everything, whatever else is right of it."""

from collections.abc import Callable

from grading.judge.session import Session
from grading.judge.verdict import Verdict

NEARLY_ALL = 0.99  # of all elements; the smallest share is far below that


class Unsharded(Exception):
    """Every rank's optimizer updates (nearly) all elements."""


def refuse_unsharded(updated: list[int], n_elements: int) -> None:
    """Raise Unsharded if no rank's optimizer updates fewer than all elements. `updated`: elements, by rank."""
    if min(updated) >= NEARLY_ALL * n_elements:
        rank = updated.index(min(updated))
        raise Unsharded(
            f"the optimizer of rank {rank} updates {updated[rank]} of {n_elements} elements, and no other fewer: "
            "nothing is sharded, so part 2 gives no points."
        )


def of_sharded(judge: Callable[[Session, str, float], Verdict]) -> Callable[[Session, str, float], Verdict]:
    """Return the judge; its verdict on an engine that shards nothing is 0 points."""

    def judged(s: Session, check: str, points: float) -> Verdict:
        try:
            return judge(s, check, points)
        except Unsharded as error:
            return Verdict(check, 0, points, str(error))

    return judged
