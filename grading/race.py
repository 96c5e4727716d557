"""How fast? Laps of the submission in turn with the reference's, timed from outside, until it is clear.

referee ── "go", a seed drawn now ──> every rank ── `serve_laps`: does the work, replies with a proof of it
   └── stops its own clock when the last rank has replied, and asks the other crew for the same

Who goes first is drawn for each pair, and whoever does not run is held still by the system: it can neither work ahead
nor keep the other from working. So whatever else disturbs the machine hits either with the same chance, and a
submission as fast as the bar asks is called too slow no more often than `false_fail` says (`sequential`).
"""

import json
import secrets
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from math import inf
from statistics import median

import torch.distributed as dist

from grading.crew import Crew
from grading.leases import quiet
from grading.sequential import median_bounds
from grading.session import Session
from grading.stopwatch import Stopwatch
from grading.timing import Timing, settled

FALSE_PASS = 0.05  # of a submission exactly at the bar; it falls fast above
WARM_UP_LAPS = 2
PROVEN = 3  # of the laps that count
FEWEST_PAIRS, LONGEST_RACE_S = 16, 60.0  # a race goes on for as many pairs, and as long, as long as it is not clear
SHORTEST_DEADLINE_S, DEADLINE_RATIO = 15.0, 20.0  # of a lap, over the reference's; the first has the whole race's
LAPS_TIMEOUT_S = 400.0

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
    s: Session, check: str, drill: str, *, bars: tuple[float, ...], proof: Proof, one_of: int = 1, **arguments
) -> Timing | None:
    """Time of the submission over time of the reference, a lap each in turn; None if a lap's work was not done.

    `drill(implementation, address, **arguments)` calls `serve_laps`. Proven are the last lap of the warm-up and some
    that counted, which are drawn when all are over. Laps follow until it is clear which is the first of the `bars`
    that it is within: all points for the first, a part for the next. `one_of`: as many races decide this check
    together.
    """
    with ExitStack() as stack:
        laps = _Laps(
            _stand_ready(s, s.crew, s.answers[check], drill, arguments, stack),
            _stand_ready(s, s.reference, None, drill, arguments, stack),
            s.false_fail / one_of,
        )
        stack.enter_context(quiet())
        laps.run(WARM_UP_LAPS)
        if not laps.proven(WARM_UP_LAPS - 1, proof):
            return None
        end = time.monotonic() + LONGEST_RACE_S
        while not settled(laps.timing(), bars) and (laps.pairs < FEWEST_PAIRS or time.monotonic() < end):
            laps.run(1)
        drawn = [WARM_UP_LAPS + secrets.randbelow(laps.pairs) for _ in range(PROVEN)]
        return laps.timing() if all(laps.proven(lap, proof) for lap in drawn) else None


class _Laps:
    """What was asked in each lap, how long either crew took, and what the submission's ranks replied."""

    def __init__(self, mine: Stopwatch, reference: Stopwatch, false_fail: float) -> None:
        self.mine, self.reference, self.false_fail = mine, reference, false_fail
        self.seeds: list[int] = []
        self.replies: list[list[dict]] = []  # [lap][rank]
        self.seconds: dict[Stopwatch, list[float]] = {mine: [], reference: []}
        self.low, self.high = 0.0, inf  # the tightest bounds so far: they hold for ever

    @property
    def pairs(self) -> int:
        return len(self.seeds) - WARM_UP_LAPS

    def run(self, n_laps: int) -> None:
        for _ in range(n_laps):
            order = {"seed": secrets.randbelow(1 << 20)}
            self.seeds.append(order["seed"])
            for watch in (self.mine, self.reference) if secrets.randbelow(2) else (self.reference, self.mine):
                with watch.alone():
                    seconds, replies = watch.lap(order, self._deadline_s())
                self.seconds[watch].append(seconds)
                if watch is self.mine:
                    self.replies.append(replies)
            if self.pairs > 0:
                low, high = median_bounds(self.ratios, too_low=self.false_fail, too_high=FALSE_PASS)
                self.low, self.high = max(self.low, low), min(self.high, high)

    @property
    def ratios(self) -> list[float]:
        pairs = zip(self.seconds[self.mine], self.seconds[self.reference], strict=True)
        return [a / b for a, b in pairs][WARM_UP_LAPS:]

    def _deadline_s(self) -> float:
        usual = self.seconds[self.reference]
        return max(SHORTEST_DEADLINE_S, DEADLINE_RATIO * median(usual)) if usual else LAPS_TIMEOUT_S

    def timing(self) -> Timing | None:
        if self.pairs <= 0:
            return None
        laps = tuple(tuple(self.seconds[watch][WARM_UP_LAPS:]) for watch in (self.mine, self.reference))
        mine_s, reference_s = map(median, laps)
        return Timing(median(self.ratios), self.low, self.high, mine_s, reference_s, self.pairs, laps)

    def proven(self, lap: int, proof: Proof) -> bool:
        return proof(self.seeds[lap], self.replies[lap])


def _stand_ready(
    s: Session, crew: Crew, answer: bytes | None, drill: str, arguments: dict, stack: ExitStack
) -> Stopwatch:
    """Ranks that wait for "go", held still until then; they leave when the watch closes."""
    arguments = s.setting | arguments
    stack.callback(crew.settle)
    watch = Stopwatch(crew, arguments["world_size"])
    stack.enter_context(closing(watch))
    crew.begin(drill, answer, timeout_s=LAPS_TIMEOUT_S, address=watch.address, **arguments)
    watch.meet()
    stack.callback(crew.thaw)
    crew.freeze()
    return watch
