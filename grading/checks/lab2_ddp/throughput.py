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
NO_PROOF = "the timed steps did not compute the right gradients, so their time says nothing: see lab2.gradients."


def judge(s: Session, check: str, points: float) -> Verdict:
    with ExitStack() as stack:
        laps = _Laps(
            _stand_ready(s, s.crew, s.answers[check], stack),
            _stand_ready(s, s.reference, None, stack),
        )
        laps.run(WARM_UP_LAPS)
        if laps.proof_error(lap=WARM_UP_LAPS - 1) > PROOF_TOLERANCE:
            return Verdict(check, 0, points, NO_PROOF)
        for n_laps in ROUNDS:
            laps.run(n_laps)
            result = laps.result()
            if not result.low <= SLOWEST <= result.high:
                break
    if (
        laps.proof_error(lap=secrets.randbelow(len(laps.seeds))) > PROOF_TOLERANCE
    ):  # nobody knew that it would be this one
        return Verdict(check, 0, points, NO_PROOF)
    return _verdict(check, points, result)


class _Laps:
    """What was asked in each lap, how long either crew took, and what the submission's ranks replied."""

    def __init__(self, mine: Stopwatch, reference: Stopwatch) -> None:
        self.mine, self.reference = mine, reference
        self.seeds: list[int] = []
        self.replies: list[list[dict]] = []  # [lap][rank]
        self.mine_s: list[float] = []
        self.reference_s: list[float] = []

    def run(self, n_laps: int) -> None:
        for _ in range(n_laps):
            self.seeds.append(secrets.randbelow(1 << 20))
            seconds, replies = self.mine.lap({"seed": self.seeds[-1]})
            self.replies.append(replies)
            self.mine_s.append(seconds)
            self.reference_s.append(self.reference.lap({"seed": self.seeds[-1]})[0])

    def result(self) -> Comparison:
        return comparison(self.mine_s[WARM_UP_LAPS:], self.reference_s[WARM_UP_LAPS:], CONFIDENCE)

    def proof_error(self, lap: int) -> float:
        """The replies of a lap against the truth: was the work done at all?"""
        truth = truth_of(drills.laps, self.seeds[lap])
        return max(distance(vector(r), truth.right) for r in self.replies[lap])


def _stand_ready(s: Session, crew: Crew, answer: bytes | None, stack: ExitStack) -> Stopwatch:
    """Ranks that wait for "go"; they leave when the watch closes."""
    stack.callback(crew.settle)
    watch = stack.enter_context(closing(Stopwatch(crew, s.world_size, deadline_s=LAPS_TIMEOUT_S + 10)))
    arguments = dict(cap_mb=drills.cap_mb(s.seed), address=watch.address)
    crew.begin("laps", answer, world_size=s.world_size, timeout_s=LAPS_TIMEOUT_S, **arguments)
    watch.meet()
    return watch


def _verdict(check: str, points: float, result: Comparison) -> Verdict:
    interval = f"{result.ratio:.2f} ({result.low:.2f} to {result.high:.2f}, {result.pairs} pairs)"
    figures = {"step time over torch DDP's": (interval, f"{SLOWEST:g}")}
    if result.high <= SLOWEST:
        return Verdict(check, points, points, "as fast as torch's DDP, within what is asked.", "", figures)
    if result.low > SLOWEST:
        cause = (
            f"a step takes {result.ratio:.1f} times as long as with torch's DDP: too many messages, or waits for each."
        )
        return Verdict(check, 0, points, cause, "", figures)
    return Verdict(check, 0, points, "the machine was too noisy to tell; ask again.", "", figures, inconclusive=True)
