"""How fast? Laps of the submission in turn with the reference's, timed from outside, until it is clear.

referee ── "go", a seed drawn now ──> every rank ── `serve_laps`: does the work, replies with a proof of it
   └── stops its own clock when the last rank has replied, and asks the other crew for the same

Who goes first is drawn for each pair, and whoever does not run is held still by the system: it can neither work ahead
nor keep the other from working. So whatever else disturbs the machine hits either with the same chance, and a
submission as fast as the bar asks is called too slow no more often than `false_fail` says (`betting_test`).
"""

import json
import secrets
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from math import inf
from statistics import median
from typing import NamedTuple

import torch.distributed as dist

from grading.boxes.machine_locks import quiet
from grading.boxes.ranks import Crew
from grading.judge.betting_test import median_bounds
from grading.judge.stopwatch import Stopwatch
from grading.judge.submission_run import Session
from grading.judge.timing import Timing, settled

FALSE_PASS = 0.05  # of a submission exactly at the bar; it falls fast above
WARM_UP_LAPS = 2
PROVEN = 3  # of the laps that count
FEWEST_PAIRS, LONGEST_RACE_S = 16, 60.0  # a race goes on for as many pairs, and as long, as long as it is not clear
SHORTEST_DEADLINE_S, DEADLINE_RATIO = 15.0, 20.0  # of a lap, over the reference's
LAPS_TIMEOUT_S = 400.0
LEAST_TIME = 0.9  # of what is slept: a sleep that follows on one that ended late is that much shorter


class Lap(NamedTuple):
    """One of the submission's."""

    seed: int  # drawn when it began
    replies: list[dict]  # in rank order
    seconds: float  # from "go" to the last reply


Proof = Callable[[Lap], bool]  # was its work done?


def too_quick(lap: Lap, least_s: float) -> bool:
    """Over before what it has to sleep through could be: somebody did not sleep. `least_s`: of any honest step."""
    return lap.seconds < LEAST_TIME * least_s


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
        stack.enter_context(quiet())  # before the ranks' time begins to run
        laps = _Laps(
            _stand_ready(s, s.crew, s.answers[check], drill, arguments, stack),
            _stand_ready(s, s.reference, None, drill, arguments, stack),
            s.false_fail / one_of,
        )
        laps.run(WARM_UP_LAPS)
        if not proof(laps.done[-1]):
            return None
        end = time.monotonic() + LONGEST_RACE_S
        while not settled(laps.timing(), bars) and (laps.pairs < FEWEST_PAIRS or time.monotonic() < end):
            laps.run(1)
        drawn = [laps.done[WARM_UP_LAPS + secrets.randbelow(laps.pairs)] for _ in range(PROVEN)]
        return laps.timing() if all(map(proof, drawn)) else None


class _Laps:
    """What was asked in each lap, how long either crew took, and what the submission's ranks replied."""

    def __init__(self, mine: Stopwatch, reference: Stopwatch, false_fail: float) -> None:
        self.mine, self.reference, self.false_fail = mine, reference, false_fail
        self.done: list[Lap] = []
        self.reference_s: list[float] = []  # of the same laps
        self.low, self.high = 0.0, inf  # the tightest bounds so far: they hold for ever

    @property
    def pairs(self) -> int:
        return len(self.done) - WARM_UP_LAPS

    def run(self, n_laps: int) -> None:
        for _ in range(n_laps):
            order = {"seed": secrets.randbelow(1 << 20)}
            found: dict[Stopwatch, tuple[float, list[dict]]] = {}
            mine_first = self.reference_s and secrets.randbelow(2)
            for watch in (self.mine, self.reference) if mine_first else (self.reference, self.mine):
                known_s = self.reference_s or [seconds for seconds, _ in found.values()]
                with watch.alone():
                    found[watch] = watch.lap(order, _deadline_s(known_s))
            seconds, replies = found[self.mine]
            self.done.append(Lap(order["seed"], replies, seconds))
            self.reference_s.append(found[self.reference][0])
            if self.pairs > 0:
                low, high = median_bounds(self.ratios, too_low=self.false_fail, too_high=FALSE_PASS)
                self.low, self.high = max(self.low, low), min(self.high, high)

    @property
    def ratios(self) -> list[float]:
        return [a / b for a, b in zip(*self.seconds, strict=True)]

    @property
    def seconds(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Of the laps that count: the submission's, the reference's."""
        mine = tuple(lap.seconds for lap in self.done)
        return mine[WARM_UP_LAPS:], tuple(self.reference_s)[WARM_UP_LAPS:]

    def timing(self) -> Timing | None:
        if self.pairs <= 0:
            return None
        mine_s, reference_s = map(median, self.seconds)
        return Timing(median(self.ratios), self.low, self.high, mine_s, reference_s, self.pairs, self.seconds)


def _deadline_s(reference_s: list[float]) -> float:
    """For a lap, by the reference's; it goes first."""
    if not reference_s:
        return LAPS_TIMEOUT_S
    return max(SHORTEST_DEADLINE_S, DEADLINE_RATIO * median(reference_s))


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
