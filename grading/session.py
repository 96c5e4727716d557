"""One submission before the referee: its answers, the crew that runs them, and the seed of everything drawn for it."""

import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from grading.crew import Crew
from grading.verdict import Verdict

DRILL_TIMEOUT_S = 15.0


@dataclass
class Session:
    answers: dict[str, bytes]  # check name -> pickled answer
    crew: Crew  # runs the answers of this submission and no other's
    reference: Crew  # runs the reference, for every submission
    world_size: int
    seed: int = field(default_factory=lambda: secrets.randbelow(10_000))
    _replies: dict[tuple, list] = field(default_factory=dict)

    def order(self, check: str, drill: str, **arguments) -> list:
        """What each rank of the submission replies to a drill; checks that ask the same of one answer share it."""
        return self._ask(self.crew, self.answers[check], drill, arguments)

    def order_reference(self, drill: str, **arguments) -> list:
        return self._ask(self.reference, None, drill, arguments)

    def _ask(self, crew: Crew, answer: bytes | None, drill: str, arguments: dict) -> list:
        key = (answer, drill, json.dumps(arguments))
        if key not in self._replies:
            arguments = {"world_size": self.world_size} | arguments
            self._replies[key] = crew.order(drill, answer, timeout_s=DRILL_TIMEOUT_S, **arguments)
        return self._replies[key]


@dataclass(frozen=True)
class Check:
    """What a check is worth, and who decides it."""

    points: float
    judge: Callable[[Session, str, float], Verdict]
