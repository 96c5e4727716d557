"""One submission while it is judged: its answers, what runs them on ranks, and the seed of all that is drawn for it."""

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any

from grading.boxes.rank_launcher_client import RankLauncher, Watched
from grading.judge.reference_lookup import OurAnswers
from grading.judge.verdict import Verdict
from shardlab.tier import Tier

SHORTEST_DEADLINE_S, LONGEST_DEADLINE_S = 15.0, 90.0
DEADLINE_RATIO = 20.0  # times the reference's time for a drill of usual length
REFERENCE_TIMEOUT_S = 120.0


@dataclass
class Session:
    answers: dict[str, bytes]  # check name -> pickled answer
    launcher: RankLauncher  # runs the answers of this submission and no other's
    reference: RankLauncher  # runs the reference, for every submission
    tier: Tier
    pace: Callable[["Session"], None]  # the lab's function that runs a drill of usual length on the reference
    false_fail: float  # the chance that its races call a fast enough step too slow
    ours: OurAnswers = field(default_factory=lambda: OurAnswers(None))
    seed: int | None = None  # of all that is drawn; None: draw one
    _replies: dict[tuple, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.seed = self.ours.draw_seed() if self.seed is None else self.seed

    def order(self, check: str, drill: str, **arguments) -> list:
        """Return each rank's reply to a drill. Checks that ask the same of one answer share the replies."""
        return self._ask(self.launcher.order, self.answers[check], drill, self.deadline_s, arguments)

    def order_reference(self, drill: str, **arguments) -> list:
        if (known := self.ours.replies(drill, arguments)) is not None:
            return known
        return self._ask(self.reference.order, None, drill, REFERENCE_TIMEOUT_S, arguments)

    def watch(self, check: str, drill: str, look: int = 0, **arguments) -> Watched:
        """Run `order` and measure the ranks from outside. Another `look` runs the same again."""
        return self._ask(self.launcher.watch, self.answers[check], drill, self.deadline_s, arguments, look)

    def watch_reference(self, drill: str, look: int = 0, **arguments) -> Watched:
        return self._ask(self.reference.watch, None, drill, REFERENCE_TIMEOUT_S, arguments, look)

    def solve(self, name: str, *arguments) -> Any:
        """Return our own solution of a drawn problem: a function of the lab's package in `grading.references`."""
        return self.ours.solve(name, *arguments)

    @property
    def setting(self) -> dict:
        """Settings of a drill that asks for no others: the tier's number of ranks and device, on the real network."""
        return {"world_size": self.tier.world_size, "device": self.tier.device}

    @cached_property
    def deadline_s(self) -> float:
        """Seconds for one drill, from the reference's time measured now, so that a busy machine allows more."""
        start = time.monotonic()
        self.pace(self)
        due_s = math.ceil(DEADLINE_RATIO * (time.monotonic() - start))
        return min(LONGEST_DEADLINE_S, max(SHORTEST_DEADLINE_S, due_s))

    def _ask(
        self, how: Callable, answer: bytes | None, drill: str, timeout_s: float, arguments: dict, look: int = 0
    ) -> Any:
        key = (how.__name__, answer, drill, json.dumps(arguments), look)
        if key not in self._replies:
            self._replies[key] = how(drill, answer, timeout_s=timeout_s, **self.setting | arguments)
        return self._replies[key]


class Ground(StrEnum):
    """What a check's points rest on: how much of it a submission could only pretend."""

    RESULT = "result"  # numbers that follow from what is drawn after the code is fixed
    SEEN = "seen"  # what the ranks say of themselves, held from both sides against clocks and counters outside
    CLAIMED = "claimed"  # what the ranks say of themselves


@dataclass(frozen=True)
class Check:
    """A check: its points, the judge that decides it, and what its points rest on."""

    points: float
    judge: Callable[[Session, str, float], Verdict]
    timed: bool = False  # it reads a clock, so it needs a quiet machine
    ground: Ground = Ground.RESULT
