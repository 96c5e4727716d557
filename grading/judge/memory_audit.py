"""Do the ranks' own accounts of memory explain what the system saw of them?

An account is taken on the ranks, where a submission can tamper with it. What the system counts it can't, but that knows
no tensors, and contains Python and all modules. So it is the difference that is compared: what the system saw and the
account leaves out may be what the reference's account leaves out, whose ranks do the same work and tell the truth.
"""

from collections.abc import Callable

from grading.boxes.ranks import Watched
from grading.judge.submission_run import Session

MIB = 1 << 20
LOOKS = 3  # what is hidden is there each time; what the machine does besides is not, and a short peak may be missed


def hidden_bytes(
    s: Session, check: str, drill: str, claims: dict[str, Callable[[dict], float]], spare_bytes: float, **arguments
) -> float:
    """Bytes a rank that no account explains; 0 if there are no more than `spare_bytes`, or if nobody could see any.

    `claims`: name in `Seen` -> what one rank's reply accounts for.
    """
    mine, reference = [], []
    for look in range(LOOKS):
        mine.append(s.watch(check, drill, look, **arguments))
        reference.append(s.watch_reference(drill, look, **arguments))
        hidden = max(_hidden(mine, reference, name, claimed) for name, claimed in claims.items())
        if hidden <= spare_bytes:
            return 0.0
    return hidden


def _hidden(mine: list[Watched], reference: list[Watched], name: str, claimed: Callable[[dict], float]) -> float:
    """A rank; the least of all looks at the submission, beyond the most of those at the reference."""
    left_out, usual = ([_left_out(w, looks[0], name, claimed) for w in looks] for looks in (mine, reference))
    return 0.0 if None in left_out + usual else min(left_out) - max(usual)


def _left_out(watched: Watched, judged: Watched, name: str, claimed: Callable[[dict], float]) -> float | None:
    """A rank, of what the system saw, by the account of the look that is judged: another look's earns no points."""
    seen = getattr(watched.seen, name)
    return None if seen is None else (seen - sum(map(claimed, judged.replies))) / len(judged.replies)


def in_words(n_bytes: float) -> str:
    return (
        f"the system saw {n_bytes / MIB:.1f} MiB a rank more than the account of your tensors explains: memory that no "
        "operation of torch touches, a module that you import on the ranks, or an account that was tampered with."
    )
