"""How fast? Laps of the submission in turn with the reference's, timed from outside, more while it is not clear.

referee ── "go", a seed drawn now ──> every rank ── `serve_laps`: does the work, replies with a proof of it
   └── stops its own clock when the last rank has replied, and asks the other crew for the same
"""

import json
import secrets
import socket
from collections.abc import Callable
from contextlib import ExitStack, closing

import torch.distributed as dist

from grading.crew import Crew
from grading.session import Session
from grading.stopwatch import Stopwatch
from grading.verdict import Verdict
from shardlab.measure.throughput import Comparison, comparison

CONFIDENCE = 0.99
WARM_UP_LAPS, ROUNDS = 2, (10, 10, 20)  # laps; one round after the other, until the interval excludes the bar
LAPS_TIMEOUT_S = 110.0

Proof = Callable[[int, list[dict]], bool]  # (seed, each rank's reply) -> were these laps' work done?


def serve_laps(address: str, lap: Callable[[dict], dict]) -> None:
    """On a rank: stand ready; at every "go" run `lap({"seed": ...})` and reply what it returns, proof of the work."""
    referee = socket.socket(socket.AF_UNIX)
    referee.connect(address)
    with referee, referee.makefile("rw", encoding="utf-8") as lines:
        print(json.dumps({"rank": dist.get_rank()}), file=lines, flush=True)
        for line in lines:
            print(json.dumps(lap(json.loads(line))), file=lines, flush=True)


def race(
    s: Session,
    check: str,
    drill: str,
    *,
    bar: float,
    proof: Proof,
    lower_bars: tuple[float, ...] = (),
    rounds: tuple[int, ...] = ROUNDS,
    **arguments,
) -> Comparison | None:
    """Time of the submission over time of the reference, a lap each in turn; None if a lap's work was not done.

    `drill(implementation, address, **arguments)` calls `serve_laps`. Two laps are proven, the last of the warm-up and
    one that nobody knew beforehand. Another round follows as long as the interval holds `bar`, or one of
    `lower_bars`, which are worth a part of the points.
    """
    with ExitStack() as stack:
        laps = _Laps(
            _stand_ready(s, s.crew, s.answers[check], drill, arguments, stack),
            _stand_ready(s, s.reference, None, drill, arguments, stack),
        )
        laps.run(WARM_UP_LAPS)
        if not laps.proven(WARM_UP_LAPS - 1, proof):
            return None
        for n_laps in rounds:
            laps.run(n_laps)
            result = laps.result()
            if not any(result.low <= b <= result.high for b in (bar, *lower_bars)):
                break
    return result if laps.proven(secrets.randbelow(len(laps.seeds)), proof) else None


def race_verdict(
    check: str, points: float, result: Comparison | None, bar: float, *, beside: str, fast: str, slow: str, idle: str
) -> Verdict:
    """Full points below `bar`, none above, and no decision where the interval holds it.

    `beside` names the reference ("torch DDP's"), `fast`, `slow` and `idle` are the causes for a pass, for too slow a
    step, and for timed steps that did not do the work. `{ratio:.1f}` may stand in `slow`.
    """
    if result is None:
        return Verdict(check, 0, points, idle)
    interval = f"{result.ratio:.2f} ({result.low:.2f} to {result.high:.2f}, {result.pairs} pairs)"
    figures = {f"step time over {beside}": (interval, f"{bar:g}")}
    if result.high <= bar:
        return Verdict(check, points, points, fast, "", figures)
    if result.low > bar:
        return Verdict(check, 0, points, slow.format(ratio=result.ratio), "", figures)
    return Verdict(check, 0, points, "the machine was too noisy to tell; ask again.", "", figures, inconclusive=True)


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

    def proven(self, lap: int, proof: Proof) -> bool:
        return proof(self.seeds[lap], self.replies[lap])


def _stand_ready(
    s: Session, crew: Crew, answer: bytes | None, drill: str, arguments: dict, stack: ExitStack
) -> Stopwatch:
    """Ranks that wait for "go"; they leave when the watch closes."""
    arguments = s.setting | arguments
    stack.callback(crew.settle)
    watch = Stopwatch(crew, arguments["world_size"], deadline_s=LAPS_TIMEOUT_S + 10)
    stack.enter_context(closing(watch))
    crew.begin(drill, answer, timeout_s=LAPS_TIMEOUT_S, address=watch.address, **arguments)
    watch.meet()
    return watch
