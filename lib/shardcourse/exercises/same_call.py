"""The check of lesson 13a's exercise: a function that compares what all ranks are about to call, and then calls it."""

from collections.abc import Callable

import torch
import torch.distributed as dist

from shardlab import LaunchError, launch

Checked = Callable[[str, torch.Tensor, Callable[[], object]], object]
_TRIALS = {  # what happens: (the odd rank, its kind, its shape, its dtype)
    "all ranks call all_reduce": (None, "all_reduce", (6,), torch.float32),
    "rank 2 calls broadcast": (2, "broadcast", (6,), torch.float32),
    "rank 1 has another shape": (1, "all_reduce", (2, 3), torch.float32),
    "rank 3 has another dtype": (3, "all_reduce", (6,), torch.int64),
}


def problems(checked: Checked, timeout_s: float = 10) -> list[str]:
    """Return what is wrong with a reader's `checked(kind, x, call)`, in words; an empty list if nothing is."""
    found = []
    for name, (odd, *theirs) in _TRIALS.items():
        try:
            ranks = launch(_try, 4, checked, odd, *theirs, timeout_s=timeout_s, stream=False, device="cpu")
        except LaunchError as error:
            waits = "some ranks wait for ever: every rank must compare before any rank calls"
            found.append(f"{name}: {waits if error.timed_out else str(error).splitlines()[0]}")
            continue
        found += [f"{name}: {problem}" for problem in _problems_of_trial(ranks, odd, theirs[0])]
    return found


def _try(checked: Checked, odd: int | None, *theirs) -> str | list[float]:
    """Return the error's text, or the values after the call."""
    kind, shape, dtype = theirs if dist.get_rank() == odd else ("all_reduce", (6,), torch.float32)
    x = torch.ones(shape, dtype=dtype)
    calls = {"all_reduce": lambda: dist.all_reduce(x), "broadcast": lambda: dist.broadcast(x, 0)}
    try:
        checked(kind, x, calls[kind])
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    return x.flatten().tolist()


def _problems_of_trial(ranks: list[str | list[float]], odd: int | None, kind: str) -> list[str]:
    raised = {rank: text for rank, text in enumerate(ranks) if isinstance(text, str)}
    if odd is None:
        wrong = [rank for rank, values in enumerate(ranks) if values != [4.0] * 6]
        return [f"rank {wrong[0]} should hold the sum, 4.0, and has {ranks[wrong[0]]}"] if wrong else []
    if quiet := [rank for rank in range(4) if rank not in raised]:
        return [f"rank {quiet[0]} raises no RuntimeError: every rank should, or the others wait"]
    unnamed = [rank for rank, text in raised.items() if str(odd) not in text or kind not in text]
    return [f"the error on rank {unnamed[0]} does not name rank {odd} and its {kind}"] if unnamed else []
