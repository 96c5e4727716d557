"""Lab 5, part 2: the plan that fits with the fewest FLOPs."""

from grading.checks.lab5_precision_recompute.plan_costs import WAYS, Blocks, flops_of, peak_of


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
