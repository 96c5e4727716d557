"""Draw a submission and the reference for the verdict: base64 of a PNG, or "" if nothing can be drawn.

The submission's ranks may reply anything. The functions that draw import matplotlib; the ranks do not.
"""

import base64
from collections.abc import Callable, Sequence

from shardlab.measure.ledger import CATEGORIES
from shardlab.measure.memory import MemoryTracker

MOMENTS = 200
MOST_BYTES = 2**50
Step = Sequence[dict[str, float]]


def moments(tracker: MemoryTracker) -> list[dict[str, int]]:
    """Return, on a rank, the tracker's bytes by category at the fullest moment of each two hundredth of the step."""
    held = [by_category for _, by_category in tracker.timeline()]
    width = -(-len(held) // MOMENTS)
    parts = [held[i : i + width] for i in range(0, len(held), width)]
    return [{k: n for k, n in max(part, key=lambda h: sum(h.values())).items() if n} for part in parts]


def of_memory(steps: dict[str, Step], allowed_bytes: float, during: str = "a step") -> str:
    def draw():
        from shardcourse.figures import memory_beside

        return memory_beside(
            {name: _checked(step) for name, step in steps.items()},
            budget=("allowed", allowed_bytes),
            title=f"What a rank holds during {during}",
        )

    return _picture(draw)


def of_laps(laps_s: dict[str, Sequence[float]]) -> str:
    def draw():
        from shardcourse.figures import laps_in_turn

        return laps_in_turn(laps_s, title="Steps, timed in turn")

    return _picture(draw)


def _checked(step: Step) -> list[dict[str, float]]:
    checked = [{name: float(held.get(name, 0)) for name in CATEGORIES} for held in step[: 2 * MOMENTS]]
    if not all(0 <= n <= MOST_BYTES for held in checked for n in held.values()):
        raise ValueError("these are no bytes")
    return checked


def _picture(draw: Callable) -> str:
    try:
        return base64.b64encode(draw().png()).decode()
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return ""
