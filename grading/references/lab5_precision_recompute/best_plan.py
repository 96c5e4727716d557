"""Lab 5, part 2: the plan that fits with the fewest FLOPs."""

from collections.abc import Iterator

import torch

from grading.checks.lab5_precision_recompute import judge_plan
from grading.checks.lab5_precision_recompute.drawn_model_and_batches import (
    DROPOUT,
    LARGE,
    SMALL,
    batch_of,
    build,
    shape_of,
)
from grading.checks.lab5_precision_recompute.notebook_model_and_price_list import price_list
from grading.checks.lab5_precision_recompute.on_ranks import BUDGETS
from grading.checks.lab5_precision_recompute.plan_costs import WAYS, Blocks, flops_of, peak_of


def asked(seed: int) -> Iterator[tuple]:
    budgets: list[tuple[Blocks, int]] = []

    def solve(name: str, *case):
        budgets.append(case)
        return fewest(*case)

    yield from (("fewest", *case) for case in judge_plan.drawn(solve, seed))
    yield from (("fewest", *case) for case in budgets)
    for shape, tier in ((SMALL, "cpu"), (LARGE, "gpu4")):
        model, (tokens, _, positions) = (
            build(seed, shape_of(seed, tier), DROPOUT),
            batch_of(seed, 0, shape, 0, 1, "cpu"),
        )
        blocks = price_list(model, tokens, positions, torch.bfloat16)
        activations = sorted({n for name, of in BUDGETS.items() if name[:3] == tier[:3] for _, n in of.values()})
        yield from (("fewest", blocks, n) for n in activations)


def fewest(blocks: Blocks, budget_bytes: int) -> dict | None:
    """Return the FLOPs and the peak of the best plan, and whether it recomputes a block in full; None if none fits."""
    plan = best_plan(blocks, budget_bytes)
    if plan is None:
        return None
    return {"flops": flops_of(plan, blocks), "peak": peak_of(plan, blocks), "full": "full" in plan}


def best_plan(blocks: Blocks, budget_bytes: int) -> list[str] | None:
    """Return a plan that fits with the fewest FLOPs; None if none fits.

    Goes block by block and keeps only partial plans that no other one beats in both bytes and FLOPs.
    """
    front = [(0, 0, [])]  # bytes held so far, FLOPs, ways
    for block in blocks:
        fitting = [entry for entry in front if entry[0] + block["keep"][0] <= budget_bytes]
        longer = [(h + block[w][0], f + block[w][1], [*ways, w]) for h, f, ways in fitting for w in WAYS]
        front, fewest = [], float("inf")
        for entry in sorted(longer):
            if entry[1] < fewest:
                front, fewest = [*front, entry], entry[1]
    return front[-1][2] if front else None


ON_RANKS = {}  # part 3 is compared with the model in float32, and part 2 with the one that keeps all
HIDDEN = ("cast_forward_inputs", "mp_policy=exact", "fully_shard(block.memory")
