"""How fast is a step? Laps in turn with torch's DDP, timed from outside, more of them while the answer is not clear."""

import secrets
from contextlib import ExitStack, closing

from grading.checks.lab2_ddp import drills
from grading.checks.lab2_ddp.gradients import distance, truth_of, vector
from grading.crew import Crew, Stopwatch
from grading.session import Session
from grading.verdict import Verdict
from shardlab.measure.throughput import Comparison, comparison

SLOWEST = 1.35  # times torch DDP's step
CONFIDENCE = 0.99
WARM_UP_LAPS, ROUNDS = 2, (10, 10, 20)  # laps; one round after the other, until the interval excludes the bar
LAPS_TIMEOUT_S = 110.0
PROOF_TOLERANCE = 0.05


def judge(s: Session, check: str, points: float) -> Verdict:
    seeds: list[int] = []
    replies: list[list[dict]] = []  # [lap][rank]
    times: tuple[list[float], list[float]] = [], []
    with ExitStack() as stack:
        mine = _stand_ready(s, s.crew, s.answers[check], stack)
        reference = _stand_ready(s, s.reference, None, stack)
        for n_laps in (WARM_UP_LAPS, *ROUNDS):
            for _ in range(n_laps):
                seeds.append(secrets.randbelow(1 << 20))
                seconds, reply = mine.lap({"seed": seeds[-1]})
                times[0].append(seconds)
                times[1].append(reference.lap({"seed": seeds[-1]})[0])
                replies.append(reply)
            if len(seeds) == WARM_UP_LAPS:
                continue
            result = comparison(times[0][WARM_UP_LAPS:], times[1][WARM_UP_LAPS:], CONFIDENCE)
            if not result.low <= SLOWEST <= result.high:
                break
    return _verdict(check, points, result, _proof_error(seeds, replies))


def _stand_ready(s: Session, crew: Crew, answer: bytes | None, stack: ExitStack) -> Stopwatch:
    """Ranks that wait for "go"; they leave when the watch closes."""
    stack.callback(crew.settle)
    watch = stack.enter_context(closing(Stopwatch(crew, s.world_size, deadline_s=LAPS_TIMEOUT_S + 10)))
    arguments = dict(cap_mb=drills.cap_mb(s.seed), address=watch.address)
    crew.begin("laps", answer, world_size=s.world_size, timeout_s=LAPS_TIMEOUT_S, **arguments)
    watch.meet()
    return watch


def _proof_error(seeds: list[int], replies: list[list[dict]]) -> float:
    """The replies of one lap, drawn afterwards, against the truth: was the work done at all?"""
    lap = secrets.randbelow(len(seeds))
    truth = truth_of(drills.laps, seeds[lap])
    return max(distance(vector(r), truth.right) for r in replies[lap])


def _verdict(check: str, points: float, result: Comparison, proof_error: float) -> Verdict:
    interval = f"{result.ratio:.2f} ({result.low:.2f} to {result.high:.2f}, {result.pairs} pairs)"
    figures = {"step time over torch DDP's": (interval, f"{SLOWEST:g}")}
    if proof_error > PROOF_TOLERANCE:
        cause = "the timed steps did not compute the right gradients, so their time says nothing: see lab2.gradients."
        return Verdict(check, 0, points, cause, "", figures)
    if result.high <= SLOWEST:
        return Verdict(check, points, points, "as fast as torch's DDP, within what is asked.", "", figures)
    if result.low > SLOWEST:
        cause = (
            f"a step takes {result.ratio:.1f} times as long as with torch's DDP: too many messages, or waits for each."
        )
        return Verdict(check, 0, points, cause, "", figures)
    return Verdict(check, 0, points, "the machine was too noisy to tell; ask again.", "", figures, inconclusive=True)
