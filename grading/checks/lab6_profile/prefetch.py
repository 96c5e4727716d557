"""Judge when each block's all_gather is requested, from the order of events on a simulated network, not from times."""

from collections import Counter

from grading.checks.lab6_profile import on_ranks
from grading.judge.session import Session
from grading.judge.verdict import Verdict

CANNOT_HIDE = 1  # a micro-batch's first block, in either direction, has no computation before it
PHASES = ("forward", "backward")


def judge(s: Session, check: str, points: float) -> Verdict:
    """Give half the points if only the forward's gathers are requested late."""
    replies = s.order(check, "asked", **_setting(s))
    due = 2 * on_ranks.N_LAYERS * on_ranks.N_MICRO_BATCHES
    computed = min(len(r["computed"]) for r in replies)
    if computed < due:
        cause = (
            f"{computed} forwards and backwards of blocks computed, and a step has {due}: "
            "each micro-batch goes through the model by itself, both ways."
        )
        return Verdict(check, 0, points, cause)
    late = {phase: max(late_blocks(r)[phase] for r in replies) for phase in PHASES}
    figures = {f"late blocks in {phase}, worst micro-batch": (f"{late[phase]}", f"{CANNOT_HIDE}") for phase in PHASES}
    wrong = [phase for phase, count in late.items() if count > CANNOT_HIDE]
    if not wrong:
        return Verdict(check, points, points, "blocks are asked for while others compute.", "", figures)
    cause = (
        f"in {' and '.join(wrong)} blocks are asked for when they are needed, after the one before has computed: "
        "nothing is left to hide their all_gather behind."
    )
    return Verdict(check, points / 2 if wrong == ["forward"] else 0, points, cause, "", figures)


def late_blocks(reply: dict) -> dict[str, int]:
    """Return, for each phase, the number of late blocks in the worst micro-batch.

    A block is late if its gather is requested when it is the next to compute. A unit inside a block is late if the
    block is the next to compute, or computes.
    """
    late, computed = {phase: set() for phase in PHASES}, reply["computed"]
    for unit, issued_s in reply["gathers"]:
        following = sum(started_s < issued_s for *_, started_s in computed)
        for place in (following, following - 1):
            if 0 <= place < len(computed) and _belongs(unit, computed[place][0], place == following):
                late[computed[place][1]].add(place)
                break
    return {phase: _worst(places) for phase, places in late.items()}


def _belongs(unit: str, block: str, is_next: bool) -> bool:
    """Return whether the unit is that block or inside it.

    A block that computes is gathered already, so a request for the whole block is for its next turn.
    """
    return unit.startswith(f"{block}.") or (unit == block and is_next)


def _worst(places: set[int]) -> int:
    by_micro_batch = Counter(place // (2 * on_ranks.N_LAYERS) for place in places)
    return max(by_micro_batch.values(), default=0)


def _setting(s: Session) -> dict:
    place = {"world_size": on_ranks.WORLD_SIZE, "device": "cpu", "network": on_ranks.SLOW_LINK}
    return place | {"seed": s.seed}
