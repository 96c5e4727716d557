"""Judge when each block's all_gather is requested, from the order of events on a simulated network, not from times."""

from grading.checks.lab6_profile import on_ranks
from grading.judge.session import Session
from grading.judge.verdict import Verdict

PHASES = ("forward", "backward")


def judge(s: Session, check: str, points: float) -> Verdict:
    """Give half the points if only the forward's gathers are requested late."""
    n_layers, lengths = shape_of(s.seed)
    shape = {"seed": s.seed, "n_layers": n_layers, "lengths": lengths}
    place = {"world_size": on_ranks.WORLD_SIZE, "device": "cpu", "network": on_ranks.SLOW_LINK}
    replies = s.order(check, "asked", **place, **shape)
    recorded = [step for rank in replies for step in rank]
    due = 2 * n_layers * lengths[0]
    computed = min(len(rank[0]["computed"]) for rank in replies)
    if computed < due:
        cause = (
            f"{computed} forwards and backwards of blocks computed, and a step has {due}: "
            "each micro-batch goes through the model by itself, both ways."
        )
        return Verdict(check, 0, points, cause)
    if missing := sorted({block for step in recorded for block in never_gathered(step, n_layers)}):
        cause = (
            f"with {n_layers} blocks, a step has no all_gather of {', '.join(missing)}: each block is gathered at "
            "least once a step, by itself."
        )
        return Verdict(check, 0, points, cause)
    late = {phase: max((late_blocks(step, n_layers)[phase] for step in recorded), key=len) for phase in PHASES}
    figures = {
        f"late blocks in {phase}, worst micro-batch": (", ".join(late[phase]) or "none", "none but the first")
        for phase in PHASES
    }
    wrong = [phase for phase in PHASES if late[phase]]
    if not wrong:
        return Verdict(check, points, points, "blocks are asked for while others compute.", "", figures)
    cause = (
        f"in {' and '.join(wrong)} blocks are asked for when they are needed, after the one before has computed: "
        "nothing is left to hide their all_gather behind."
    )
    return Verdict(check, points / 2 if wrong == ["forward"] else 0, points, cause, "", figures)


def shape_of(seed: int) -> tuple[int, list[int]]:
    """Return the number of blocks, and the number of micro-batches of each recorded step."""
    return 5 + seed % 2, [2 + seed % 3, 1]


def never_gathered(step: dict, n_layers: int) -> list[str]:
    """Return the blocks of which neither the whole nor a unit inside was gathered."""
    units = {unit for unit, _ in step["gathers"]}
    blocks = [f"blocks.{i}" for i in range(n_layers)]
    return [b for b in blocks if not any(u == b or u.startswith(f"{b}.") for u in units)]


def late_blocks(step: dict, n_layers: int) -> dict[str, list[str]]:
    """Return, for each phase, the late blocks of the worst micro-batch, without the first block to compute.

    A block is late if its gather is requested when it is the next to compute. A unit inside a block is late if the
    block is the next to compute, or computes.
    """
    late, computed = set(), step["computed"]
    for unit, issued_s in step["gathers"]:
        following = sum(started_s < issued_s for *_, started_s in computed)
        for place in (following, following - 1):
            if 0 <= place < len(computed) and _belongs(unit, computed[place][0], place == following):
                late.add(place)
                break
    first = {"forward": "blocks.0", "backward": f"blocks.{n_layers - 1}"}  # has no computation before it
    by_micro_batch: dict[tuple[str, int], list[str]] = {}
    for place in sorted(late):
        block, phase, _ = computed[place]
        micro_batch = sum(name == "blocks.0" and kind == "forward" for name, kind, _ in computed[: place + 1])
        if block != first[phase]:
            by_micro_batch.setdefault((phase, micro_batch), []).append(block)
    return {
        phase: max((found for (p, _), found in by_micro_batch.items() if p == phase), key=len, default=[])
        for phase in PHASES
    }


def _belongs(unit: str, block: str, is_next: bool) -> bool:
    """Return whether the unit is that block or inside it.

    A block that computes is gathered already, so a request for the whole block is for its next turn.
    """
    return unit.startswith(f"{block}.") or (unit == block and is_next)
