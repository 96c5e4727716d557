"""Measure speed: time laps of the submission and of the reference in turn, from outside, until the result is clear.

referee ── "go", a new random seed ──> every rank ── `serve_laps`: does the work, replies with a proof of it
   └── stops its own clock when the last rank has replied, then times the other launcher in the same way

The order within each pair is random. Processes that are not timed are stopped: they can neither work ahead nor slow the
others. So any other disturbance of the machine hits both with the same chance, and a submission as fast as the bar
asks is called too slow no more often than `false_fail` says (`betting_test`).
"""

import json
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from math import inf
from statistics import median
from typing import NamedTuple

import torch.distributed as dist

from grading.boxes.machine_locks import quiet
from grading.boxes.rank_launcher_client import RankLauncher
from grading.judge.betting_test import median_bounds
from grading.judge.session import Session
from grading.judge.stopwatch import Stopwatch
from grading.judge.timing_verdict import Timing, settled

FALSE_PASS = 0.05  # for a submission exactly at the bar; slower ones pass far less often
WARM_UP_LAPS = 2
PROVEN = 3  # laps whose proof is checked, of those that count
FEWEST_PAIRS, LONGEST_RACE_S = 16, 60.0  # an unclear race goes on for at least this many pairs, and this long
SHORTEST_DEADLINE_S, DEADLINE_RATIO = 15.0, 20.0  # of a lap; the ratio is to the reference's time
LAPS_TIMEOUT_S = 400.0
LEAST_TIME = 0.9  # of the time slept: a sleep after one that ended late is shorter by that delay


class Lap(NamedTuple):
    """One lap of the submission."""

    seed: int  # drawn when it began
    replies: list[dict]  # in rank order
    seconds: float  # from "go" to the last reply
    reference: Sequence[dict] = ()  # the reference's replies to the same lap


Proof = Callable[[Lap], bool]  # True if the lap's work was done


def too_quick(lap: Lap, least_s: float) -> bool:
    """Return True if the lap was shorter than its sleeps: a rank did not sleep. `least_s`: sleep of an honest step."""
    return lap.seconds < LEAST_TIME * least_s


def serve_laps(address: str, lap: Callable[[dict], dict]) -> None:
    """Serve laps on a rank: at every "go" run `lap({"seed": ...})` and send back what it returns, proof of the work."""
    referee = socket.socket(socket.AF_UNIX)
    referee.connect(address)
    with referee, referee.makefile("rw", encoding="utf-8") as lines:
        print(json.dumps({"rank": dist.get_rank()}), file=lines, flush=True)
        for line in lines:
            print(json.dumps(lap(json.loads(line))), file=lines, flush=True)


def race(
    s: Session, check: str, drill: str, *, bars: tuple[float, ...], proof: Proof, one_of: int = 1, **arguments
) -> Timing | None:
    """Return the submission's time over the reference's, from laps in turn; None if a lap's work was not done.

    `drill(implementation, address, **arguments)` calls `serve_laps`. Proofs are checked for the last warm-up lap, and
    for some laps that count, which are drawn after the race. Laps follow until it is clear which of the `bars` is the
    first that the submission meets: all points for the first, a part for the next. `one_of`: how many races decide this
    check together.
    """
    with ExitStack() as stack:
        stack.enter_context(quiet())  # before the ranks' deadline starts to run
        laps = _Laps(
            _stand_ready(s, s.launcher, s.answers[check], drill, arguments, stack),
            _stand_ready(s, s.reference, None, drill, arguments, stack),
            s.false_fail / one_of,
            s.ours.pace(drill, arguments),
        )
        laps.run(WARM_UP_LAPS)
        if not proof(laps.done[-1]):
            return None
        end = time.monotonic() + LONGEST_RACE_S
        while not settled(laps.timing(), bars) and (laps.pairs < FEWEST_PAIRS or time.monotonic() < end):
            laps.run(1)
        drawn = [laps.done[WARM_UP_LAPS + secrets.randbelow(laps.pairs)] for _ in range(PROVEN)]
        return laps.timing() if all(map(proof, drawn)) else None


def ratio_of_references(s: Session, drill: str, pairs: int, **arguments) -> float:
    """Return the time of the session's reference over that of its launcher's own reference, the median of `pairs`."""
    with ExitStack() as stack:
        stack.enter_context(quiet())
        theirs, ours = (_stand_ready(s, one, None, drill, arguments, stack) for one in (s.launcher, s.reference))
        laps = _Laps(theirs, ours, s.false_fail)
        laps.run(WARM_UP_LAPS + pairs)
        return 1 / median(laps.ratios)


class _Laps:
    """Record of a race: each lap's seed, both launchers' times, and the replies of the submission's ranks.

    `pace`: what the reference's time is multiplied by, if its ranks run something else than our answer.
    """

    def __init__(self, mine: Stopwatch, reference: Stopwatch, false_fail: float, pace: float = 1.0) -> None:
        self.mine, self.reference, self.false_fail, self.pace = mine, reference, false_fail, pace
        self.done: list[Lap] = []
        self.reference_s: list[float] = []  # of the same laps
        self.low, self.high = 0.0, inf  # the tightest bounds so far: each bound stays valid

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
            self.done.append(Lap(order["seed"], replies, seconds, found[self.reference][1]))
            self.reference_s.append(self.pace * found[self.reference][0])
            if self.pairs > 0:
                low, high = median_bounds(self.ratios, too_low=self.false_fail, too_high=FALSE_PASS)
                self.low, self.high = max(self.low, low), min(self.high, high)

    @property
    def ratios(self) -> list[float]:
        return [a / b for a, b in zip(*self.seconds, strict=True)]

    @property
    def seconds(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Seconds of the laps that count: the submission's, the reference's."""
        mine = tuple(lap.seconds for lap in self.done)
        return mine[WARM_UP_LAPS:], tuple(self.reference_s)[WARM_UP_LAPS:]

    def timing(self) -> Timing | None:
        if self.pairs <= 0:
            return None
        mine_s, reference_s = map(median, self.seconds)
        return Timing(median(self.ratios), self.low, self.high, mine_s, reference_s, self.pairs, self.seconds)


def _deadline_s(reference_s: list[float]) -> float:
    """Return a lap's deadline in seconds, from the reference's earlier laps. The reference runs the first lap."""
    if not reference_s:
        return LAPS_TIMEOUT_S
    return max(SHORTEST_DEADLINE_S, DEADLINE_RATIO * median(reference_s))


def _stand_ready(
    s: Session, launcher: RankLauncher, answer: bytes | None, drill: str, arguments: dict, stack: ExitStack
) -> Stopwatch:
    """Start ranks that wait for "go", stopped until then; they leave when the stopwatch closes."""
    arguments = s.setting | arguments
    stack.callback(launcher.settle)
    watch = Stopwatch(launcher, arguments["world_size"])
    stack.enter_context(closing(watch))
    launcher.begin(drill, answer, timeout_s=LAPS_TIMEOUT_S, address=watch.address, **arguments)
    watch.meet()
    stack.callback(launcher.thaw)
    launcher.freeze()
    return watch
