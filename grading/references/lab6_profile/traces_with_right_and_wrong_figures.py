"""Lab 6: drawn traces, the right figures of each, and those of each usual mistake."""

from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import count

from grading.checks.lab6_profile.named_mistake import FAR, N_CROWDED, N_PLAIN
from grading.references.lab6_profile.draw_trace_and_figures import draw_trace, figures_of
from grading.references.lab6_profile.wrong_figures import OF_HIDDEN, OF_SHARES, OF_UNIT, one_unit_at_a_time

MISTAKES = {"shares": OF_SHARES, "hidden": OF_HIDDEN, "unit": OF_UNIT}


RARE = one_unit_at_a_time, partial(one_unit_at_a_time, newest=True)  # few traces tell these readers apart


def _finds_another_unit(mistake: Callable[[dict], dict], trace: dict) -> bool:
    return mistake(trace)["unit"] != figures_of(trace)["unit"]


def asked(seed: int) -> Iterator[tuple]:
    yield "drawn", seed


@cache
def drawn(seed: int) -> dict:
    """Return traces, the right figures of each, and by kind those of each usual mistake, as (words, of each trace).

    Traces are drawn again until each of the mistakes shows in one of them.
    """
    for attempt in count():
        first = (seed + 10_000 * attempt) * 10
        traces = [draw_trace(first + i, plain=True, step=1 if i == 0 else None) for i in range(N_PLAIN)]
        rare = [None] * (N_CROWDED - len(RARE)) + [partial(_finds_another_unit, mistake) for mistake in RARE]
        traces += [draw_trace(first + N_PLAIN + i, plain=False, also=also) for i, also in enumerate(rare)]
        right = [figures_of(trace) for trace in traces]
        wrong = {kind: [[words, _each(m, traces)] for words, m in known.items()] for kind, known in MISTAKES.items()}
        if all(any(map(_far, right, found)) for known in wrong.values() for _, found in known):
            return {"traces": traces, "right": right} | wrong
    raise AssertionError("count() does not end")


def _each(mistake: Callable[[dict], dict], traces: list[dict]) -> list[dict]:
    """Return the figures of someone who makes this mistake, of each trace."""
    return [figures_of(trace) | mistake(trace) for trace in traces]


def _far(right: dict, wrong: dict) -> bool:
    return any(w != right[k] if k == "unit" else abs(w - right[k]) > FAR for k, w in wrong.items())
