"""Name the usual mistake in reading a trace that explains what a submission finds, and see that each one shows."""

from collections.abc import Callable

from grading.checks.errors_with_nan import largest
from grading.checks.lab6_profile.traces import SHARES, figures_of
from grading.checks.lab6_profile.wrong_figures import OF_HIDDEN, OF_SHARES, OF_UNIT

TOLERANCE = 1e-3
N_PLAIN = 3  # the first of the drawn traces are plain


def of_shares(found: list[dict], drawn: list[dict]) -> str:
    """Return the words of the first mistake that explains the shares in all crowded traces, or else in all plain ones.

    The plain traces help if several mistakes come together.
    """
    of_traces = list(zip(found, drawn, strict=True))
    for some in (of_traces[N_PLAIN:], of_traces[:N_PLAIN]):
        if words := _that_explains(OF_SHARES, some, SHARES):
            return words
    off = {k: largest(abs(f[k] - figures_of(t)[k]) for f, t in of_traces) for k in SHARES}
    wrong_keys = ", ".join(repr(k) for k, e in off.items() if e > TOLERANCE)
    sums = [sum(f[k] for k in SHARES) for f in found]
    far = max(sums, key=lambda x: abs(x - 1))
    added = f" The four shares of a trace add up to {far:.3f}." if abs(far - 1) > TOLERANCE else ""
    return f"{wrong_keys} differ from what the trace says.{added}"


def of_unit(found: list[dict], drawn: list[dict]) -> str:
    words = _that_explains(OF_UNIT, list(zip(found, drawn, strict=True)), ("unit",))
    return words or "'unit' is not the one whose all_gathers are exposed longest in this step, on this rank."


def of_hidden(found: list[dict], drawn: list[dict]) -> str:
    words = _that_explains(OF_HIDDEN, list(zip(found, drawn, strict=True)), ("hidden",))
    return words or "'hidden' is not the share of communication's time (both kinds united) in which the rank computes."


def show(drawn: list[dict]) -> bool:
    """Return whether each mistake makes a figure clearly wrong in one of the traces."""
    right = [figures_of(trace) for trace in drawn]
    mistakes = [*OF_SHARES.values(), *OF_HIDDEN.values(), *OF_UNIT.values()]
    return all(any(_far(m(t), r) for t, r in zip(drawn, right, strict=True)) for m in mistakes)


def _far(wrong: dict, right: dict) -> bool:
    return any(w != right[k] if k == "unit" else abs(w - right[k]) > 10 * TOLERANCE for k, w in wrong.items())


def _that_explains(
    mistakes: dict[str, Callable[[dict], dict]], of_traces: list[tuple[dict, dict]], keys: tuple[str, ...]
) -> str:
    """Return the words of the first mistake whose figures are the found ones, in all traces; "" if none is."""
    for words, mistake in mistakes.items():
        wrong = [figures_of(trace) | mistake(trace) for _, trace in of_traces]
        shows = any(not _near(figures_of(t), w, keys) for (_, t), w in zip(of_traces, wrong, strict=True))
        if shows and all(_near(f, w, keys) for (f, _), w in zip(of_traces, wrong, strict=True)):
            return words
    return ""


def _near(found: dict, wrong: dict, keys: tuple[str, ...]) -> bool:
    """Compare all figures but 'rest', which some find by subtraction and some do not."""
    return all(
        found[k] == wrong[k] if k == "unit" else abs(found[k] - wrong[k]) <= TOLERANCE for k in keys if k != "rest"
    )
