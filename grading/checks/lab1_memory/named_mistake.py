"""Name the mistake behind a wrong prediction: the one whose predictions are the same on all setups at once."""

from grading.checks.errors_with_nan import largest

SAME = 0.006  # relative to the mistaken prediction; a mistake changes the bytes by more than any tolerance


def named(explained: dict, of: str, mine: list[float], states_are_right: bool = True) -> str | None:
    """Return the mistake that gives these "resident" or "peak" predictions on all setups; None if none does.

    `explained`: see `grading.references.lab1_memory`. For a wrong peak, try only mistakes in the states if the resident
    bytes are wrong too, else only the others.
    """
    states_differ = of == "resident" or not states_are_right
    fits = []
    for words, wrong in explained["mistakes"]:
        if differs(explained, wrong, "resident") == states_differ and differs(explained, wrong, of):
            fits.append((largest(abs(m / w - 1) for m, w in zip(mine, wrong[of], strict=True)), words))
    distance, words = min(fits, default=(1.0, ""), key=lambda fit: fit[0])
    return words if distance <= SAME else None


def differs(explained: dict, wrong: dict, of: str) -> bool:
    return any(abs(w / r - 1) > SAME for w, r in zip(wrong[of], explained["right"][of], strict=True))
