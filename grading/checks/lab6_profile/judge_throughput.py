"""Compare the time of a step with that of our repaired program on the same simulated network; their laps alternate."""

from functools import cache

import torch

from grading.checks.lab6_profile import on_ranks
from grading.checks.one_thread import one_thread
from grading.judge.session import Session
from grading.judge.tensor_projections import distance
from grading.judge.timed_laps import Lap, race, too_quick
from grading.judge.timing_verdict import Timing, settled, too_noisy
from grading.judge.verdict import Verdict

SLOWEST, SLOWEST_FOR_HALF = 1.2, 1.5  # step time over the reference's
PROOF_TOLERANCE = 0.02
PLACE = {"world_size": on_ranks.WORLD_SIZE, "device": "cpu", "network": on_ranks.SLOW_LINK}


def judge(s: Session, check: str, points: float) -> Verdict:
    seen: list[str] = []

    def proof(lap: Lap) -> bool:
        seen.append(not_done(lap))
        return not seen[-1]

    timing = race(s, check, "laps", bars=(SLOWEST, SLOWEST_FOR_HALF), proof=proof, **PLACE)
    if timing is None:
        return Verdict(check, 0, points, f"the timed steps did not do their work: {seen[-1]}")
    return verdict_of(check, points, timing)


def verdict_of(check: str, points: float, timing: Timing) -> Verdict:
    """Give full points below the first bar, half below the second; decide nothing if the timing is unclear."""
    allowed = f"{SLOWEST:g}; {SLOWEST_FOR_HALF:g} for half the points"
    figures = {"step time over the repaired program's": (str(timing), allowed)}
    if not settled(timing, (SLOWEST, SLOWEST_FOR_HALF)):
        return too_noisy(check, points, figures)
    if timing.within(SLOWEST):
        return Verdict(check, points, points, "as fast as is asked.", "", figures)
    half = timing.within(SLOWEST_FOR_HALF)
    cause = f"a step takes {timing.ratio:.2f} times as long as it could within these budgets: " + (
        "half way. What does the link still carry in every micro-batch that it need not?"
        if half
        else "read its trace, and see lab6.messages and lab6.prefetch."
    )
    return Verdict(check, points / 2 if half else 0, points, cause, "", figures)


def not_done(lap: Lap) -> str:
    """Return what is wrong with the work of a lap; "" if nothing is."""
    due, replies = on_ranks.N_LAYERS * on_ranks.N_MICRO_BATCHES, lap.replies
    if too_quick(lap, computing_s := 3 * due * on_ranks.SLEPT_S):  # backward takes twice as long as forward
        return f"one took {lap.seconds:.2f} s, and its blocks take {computing_s:.2f} s to compute."
    for phase, name in enumerate(("forwards", "backwards")):
        count = min(r["slept"][phase] for r in replies)
        if count < due:
            return f"{count} {name} of blocks computed, and a step has {due}."
    mine = torch.tensor([sum(r["moved"][name] for r in replies) for name in sorted(replies[0]["moved"])])
    if (error := distance(mine.double(), moves(lap.seed))) > PROOF_TOLERANCE:
        return f"the weights moved otherwise than in the program before: off by {error:.2g} of the move."
    return ""


@cache
@one_thread()
def moves(seed: int) -> torch.Tensor:
    """Return the projected move of the weights in a lap's step, by one process that trains the whole model."""
    model = on_ranks.make_model(0, on_ranks.N_LAYERS)
    optimizer, before = on_ranks.make_optimizer(model), on_ranks.whole(model)
    for rank in range(on_ranks.WORLD_SIZE):
        for batch in on_ranks.batches(seed, 0, rank, on_ranks.N_MICRO_BATCHES):
            (model(*batch) / (on_ranks.WORLD_SIZE * on_ranks.N_MICRO_BATCHES)).backward()
    optimizer.step()
    after = on_ranks.whole(model)
    found = on_ranks.waves_of({name: after[name] - before[name] for name in after}, seed)
    return torch.tensor([found[name] for name in sorted(found)], dtype=torch.float64)
