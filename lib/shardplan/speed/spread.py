"""The range of a step's time: how much faster or slower programs run than the middle that is planned.

    computation      a step's products reach 0.725 to all of the best shape's speed; 0.8875 is planned (`achievable`)
    communication    published collectives of 64 MiB and more are up to 1.5 times as fast or as slow as planned: 95% of
                     those that `shardlab bench interconnect` predicts (smaller ones scatter more, and are hidden more)
    a ring           whether context-parallel ranks balance the causal mask is not known. If not, the last of c ranks
                     has 2 - 1/c times its share of the attention, and the others wait

The bubble is computation and communication, and has their range. The rest, which moves memory, has none.
"""

from shardplan.planned_job import Setup
from shardplan.speed.achievable import SUSTAINED, YOUNG

LEAST, MOST = min(YOUNG.values()), 1.0  # of the best shape's speed
LINKS = 1.5


def range_s(setup: Setup, parts_s: dict[str, float], attention_s: float) -> tuple[float, float]:
    """Return the seconds of a fast and of a slow step. The middle has these parts; attention is in its computation."""
    unbalanced_s = (1 - 1 / setup.strategy.context) * attention_s
    return _step_s(parts_s, SUSTAINED / MOST, 1 / LINKS), _step_s(parts_s, SUSTAINED / LEAST, LINKS, unbalanced_s)


def _step_s(parts_s: dict[str, float], computing: float, waiting: float, more_s: float = 0.0) -> float:
    computed_s, exposed_s = parts_s["computation"], parts_s["exposed communication"]
    busy_s = computing * computed_s + waiting * exposed_s + more_s
    bubble_s = parts_s["bubble"] * busy_s / (computed_s + exposed_s)
    others_s = sum(s for name, s in parts_s.items() if name not in ("computation", "exposed communication", "bubble"))
    return busy_s + bubble_s + others_s
