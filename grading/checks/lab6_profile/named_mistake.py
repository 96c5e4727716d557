"""Name the usual mistake in reading a trace whose figures are those that a submission finds.

`drawn` is what `grading.references.lab6_profile.drawn` returns.
"""

from grading.checks.errors_with_nan import largest

TOLERANCE = 1e-3
FAR = 10 * TOLERANCE  # each mistake is as far off in one of the traces
N_PLAIN, N_CROWDED = 3, 5  # the plain traces come first: events take turns inside the step
SHARES = ("computes", "all_gather", "reduce_scatter", "rest")


def of_shares(found: list[dict], drawn: dict) -> str:
    """Return the words of the first mistake that explains the shares in all crowded traces, or else in all plain ones.

    The plain traces help if several mistakes come together.
    """
    for some in (slice(N_PLAIN, None), slice(N_PLAIN)):
        if words := _that_explains("shares", found, drawn, SHARES, some):
            return words
    pairs = list(zip(found, drawn["right"], strict=True))
    off = {k: largest(abs(f[k] - right[k]) for f, right in pairs) for k in SHARES}
    wrong_keys = ", ".join(repr(k) for k, e in off.items() if e > TOLERANCE)
    sums = [sum(f[k] for k in SHARES) for f in found]
    far = max(sums, key=lambda x: abs(x - 1))
    added = f" The four shares of a trace add up to {far:.3f}." if abs(far - 1) > TOLERANCE else ""
    return f"{wrong_keys} differ from what the trace says.{added}"


def of_unit(found: list[dict], drawn: dict) -> str:
    words = _that_explains("unit", found, drawn, ("unit",))
    return words or "'unit' is not the one whose all_gathers are exposed longest in this step, on this rank."


def of_hidden(found: list[dict], drawn: dict) -> str:
    words = _that_explains("hidden", found, drawn, ("hidden",))
    return words or "'hidden' is not the share of communication's time (both kinds united) in which the rank computes."


def _that_explains(kind: str, found: list[dict], drawn: dict, keys: tuple[str, ...], some: slice = slice(None)) -> str:
    """Return the words of the first mistake whose figures are the found ones, in all these traces; "" if none is."""
    for words, wrong in drawn[kind]:
        if all(map(_near, drawn["right"][some], wrong[some], [keys] * len(wrong))):
            continue  # it does not show in these
        if all(map(_near, found[some], wrong[some], [keys] * len(wrong))):
            return words
    return ""


def _near(found: dict, wrong: dict, keys: tuple[str, ...]) -> bool:
    """Compare all figures but 'rest', which some find by subtraction and some do not."""
    return all(
        found[k] == wrong[k] if k == "unit" else abs(found[k] - wrong[k]) <= TOLERANCE for k in keys if k != "rest"
    )
