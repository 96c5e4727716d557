"""Ranks in words: "rank 2", "ranks 0-2, 5"."""

from collections.abc import Iterable


def named(ranks: Iterable[int]) -> str:
    """Return ranks in words: "rank 2", "ranks 0, 1", "ranks 0-2, 5"."""
    numbers = set(ranks)
    return f"rank{'s' * (len(numbers) > 1)} {runs(numbers)}"


def runs(ranks: Iterable[int]) -> str:
    """Return rank numbers as text: "0-2, 5, 6" for [0, 1, 2, 5, 6]."""
    found: list[list[int]] = []
    for r in sorted(ranks):
        if found and r == found[-1][-1] + 1:
            found[-1].append(r)
        else:
            found.append([r])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in found)
