"""Part 1: judge the forward passes: each batch once, and each rank its share of every validation, without graphs."""

import math
from collections import Counter


def judge_passes(passes: list[list], due: list[int], run: dict) -> str:
    """Return in words what the ranks' forward passes should not be, or an empty string.

    `passes`: by rank, (step of the batch, or -1; rows; is a graph built?) of each forward pass, in order. `due`: the
    steps after which a validation is due.
    """
    for rank, mine in enumerate(passes):
        times = Counter(step for step, *_ in mine)
        for step in range(run["n_steps"]):
            if times[step] != 1:
                return f"on rank {rank} the batch of step {step} went through the model {times[step]} times, not once."
    validations = [_validations(mine) for mine in passes]
    for rank, mine in enumerate(validations):
        for step in sorted(mine.keys() - {*due}):
            return f"rank {rank} makes {len(mine[step])} forward passes after step {step}, and no validation is due."
    allowed = math.ceil(run["n_documents"] / (len(passes) * run["batch_size"]))
    for step in due:
        by_rank = [mine.get(step, []) for mine in validations]
        if problem := _validation(by_rank, allowed, run):
            return f"the validation loss after step {step} is right, but {problem}"
    return ""


def _validations(passes: list) -> dict[int, list]:
    """Return (rows, is a graph built?) of the passes that are no batch's, by the step before them."""
    found, before = {}, -1
    for step, rows, graph in passes:
        if step >= 0:
            before = step
        else:
            found.setdefault(before, []).append((rows, graph))
    return found


def _validation(by_rank: list[list], allowed: int, run: dict) -> str:
    for rank, mine in enumerate(by_rank):
        if len(mine) > allowed:
            return f"rank {rank} makes {len(mine)} forward passes for it where {allowed} would do."
        if (most := max((rows for rows, _ in mine), default=0)) > run["batch_size"]:
            return f"rank {rank} puts {most} documents at once into a forward pass; batch_size is {run['batch_size']}."
        if any(graph for _, graph in mine):
            return f"rank {rank} makes a forward pass for it without torch.no_grad: its graph needs memory."
    rows = sum(rows for mine in by_rank for rows, _ in mine)
    if rows < run["n_documents"]:
        return f"{rows} documents went through the sharded model for it, of {run['n_documents']}."
    return ""
