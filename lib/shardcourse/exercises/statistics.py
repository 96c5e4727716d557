"""The exercise of lesson 0: the mean, deviation, maximum and its owner, of values that are spread over four ranks.

print(check_statistics(fn))  # in words: "right", or what is wrong
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from shardlab import LaunchError, launch

NAMES = ("mean", "standard deviation", "maximum", "owner")
Numbers = tuple[float, float, float, int]  # by NAMES


def draw_parts(seed: int = 0) -> list[Tensor]:
    """Return the values of four ranks: rank 1 has none, and the maximum is on rank 2 and on rank 3."""
    generator = torch.Generator().manual_seed(seed)
    parts = [torch.randn(n, generator=generator) + offset for n, offset in ((5, 3), (0, 0), (3, -4), (12, 1))]
    parts[2][1] = parts[3][7] = torch.cat(parts).max() + 1
    return parts


def check_statistics(fn: Callable[[Tensor], Numbers | None], seed: int = 0) -> str:
    """Run `fn(values)` on four ranks and say what is wrong with its results, the likely cause first."""
    parts = draw_parts(seed)
    try:
        results = launch(_on_my_part, len(parts), fn, parts, device="cpu", timeout_s=15, stream=False)
    except LaunchError as error:
        return f"It did not end: {str(error).splitlines()[0]}. (Rank 1 holds no values.)"
    if all(result is None for result in results):
        return "Not written yet: the function returns None."
    for rank, result in enumerate(results):
        if not isinstance(result, Sequence) or len(result) != len(NAMES):
            return f"Rank {rank} returns {result!r}. Every rank must return four numbers: {', '.join(NAMES)}."
    whole = torch.cat(parts)
    right = _numbers(whole, owner=2)
    for i, name in enumerate(NAMES):
        for rank, result in enumerate(results):
            if not _close(result[i], right[i]):
                cause = _cause(i, float(result[i]), parts, rank)
                return f"The {name} on rank {rank} is {float(result[i]):.4g}, not {right[i]:.4g}. {cause}"
    return "Right, on every rank."


def _on_my_part(fn: Callable[[Tensor], Numbers | None], parts: list[Tensor]) -> Numbers | None:
    return fn(parts[torch.distributed.get_rank()])


def _numbers(values: Tensor, owner: int) -> Numbers:
    return values.mean().item(), values.std(correction=0).item(), values.max().item(), owner


def _close(found: float, wanted: float) -> bool:
    return math.isclose(found, wanted, rel_tol=1e-4, abs_tol=1e-5)


def _cause(i: int, found: float, parts: list[Tensor], rank: int) -> str:
    """Name the mistake that gives this number, if it is a known one."""
    whole, held = torch.cat(parts), [part for part in parts if part.numel()]
    if i == 3:
        return "Ranks 2 and 3 both hold the maximum: the owner is the lower rank."
    own = _numbers(parts[rank], rank)[i] if parts[rank].numel() else math.nan
    known = {own: "It is the number of this rank's values alone: nothing was exchanged."}
    if i == 0:
        known[sum(part.mean().item() for part in held) / len(held)] = (
            "It is the mean of the ranks' means: a rank with 3 values counts as much as one with 12."
        )
        known[whole.sum().item() / len(parts)] = "The sum was divided by the number of ranks, not of values."
    if i == 1:
        about_own = sum(((part - part.mean()) ** 2).sum() for part in held)
        known[math.sqrt(about_own / whole.numel())] = "Each rank took the distance from its own mean."
        known[whole.std().item()] = "The sum was divided by n - 1: divide by n."
        known[whole.var(correction=0).item()] = "It is the variance: take its square root."
    return next((words for value, words in known.items() if _close(found, value)), "")
