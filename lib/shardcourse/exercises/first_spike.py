"""The check of lesson 13b's exercise: a function that finds the first spike of a run, and the ranks that it is from."""

import math
from collections.abc import Callable, Iterator

Step = tuple[float, list[float]]  # the gradient's norm over all ranks, and the loss of each rank
FirstSpike = Callable[[list[Step]], tuple[int, list[int]] | None]
_CALM = [0.9, 1.1, 0.8, 1.0, 1.2, 0.7, 1.0, 0.9, 1.1, 1.0]  # norms of one period


def problems(first_spike: FirstSpike) -> list[str]:
    """Return what is wrong with a reader's `first_spike(history)`, in words; an empty list if nothing is."""
    found = [(words, right, first_spike(history)) for words, history, right in _trials()]
    return [f"{words}: it should return {right}, and returns {got}" for words, right, got in found if got != right]


def _trials() -> Iterator[tuple[str, list[Step], tuple[int, list[int]] | None]]:
    """Yield (what happens, history, right answer)."""
    yield "a calm run", _run(40), None
    yield "large norms in steps 0 to 4, as every run has them", _run(40, {n: 9.0 for n in range(5)}), None
    yield "norms that grow slowly, from 1 to 8", [(1.06**n, [3.0] * 4) for n in range(36)], None
    yield "a norm of 6 in step 25, one rank's loss is high", _run(40, {25: 6.0}, {25: [3.0, 3.1, 9.0, 2.9]}), (25, [2])
    yield "a norm of 6 in step 25, all losses alike", _run(40, {25: 6.0}), (25, [])
    yield "two spikes: the first counts", _run(40, {25: 6.0, 30: 60.0}, {30: [30.0, 3, 3, 3]}), (25, [])
    yield "a norm that is NaN, finite losses", _run(40, {20: math.nan}), (20, [])
    yield "NaN in the loss of rank 3", _run(40, {20: math.nan}, {20: [3.0, 3.0, 3.0, math.nan]}), (20, [3])


def _run(steps: int, norms: dict[int, float] | None = None, losses: dict[int, list[float]] | None = None) -> list[Step]:
    norm, loss = norms or {}, losses or {}
    calm = [(_CALM[n % len(_CALM)], [3.0 + 0.1 * ((n + rank) % 3) for rank in range(4)]) for n in range(steps)]
    return [(norm.get(n, usual), loss.get(n, alike)) for n, (usual, alike) in enumerate(calm)]
