"""Part 2: judge whether each plan fits its budget, and how many more FLOPs it takes than the best one."""

import random
from collections.abc import Callable

from grading.checks.lab5_precision_recompute.plan_costs import WAYS, Blocks, flops_of, peak_of
from grading.judge.session import Session
from grading.judge.verdict import Verdict

N_BLOCKS = (6, 6, 7, 8, 9, 24, 24)
EXACT = (0, 5)  # cases whose budget is what the best plan needs, to the byte
FEWEST, NEARLY = 1.001, 1.1  # FLOPs over the fewest: each case (3 points), all cases together (2 points)
SHARES = 1.0, 2 / 3, 1 / 3  # of the points
LIMIT_S = 15  # of computing, for all cases
UNIT = 4099  # bytes: no multiple of a power of two, so that a plan in rounded bytes shows


def judge(s: Session, check: str, points: float) -> Verdict:
    cases = drawn(s.solve, s.seed)
    plans = s.order(check, "choose", world_size=1, device="cpu", instances=cases, limit_s=LIMIT_S)[0]
    fewest = [s.solve("fewest", *case) for case in cases]
    for (blocks, budget), plan, best in zip(cases, plans, fewest, strict=True):
        if cause := _does_not_fit(blocks, budget, plan, best):
            return Verdict(check, 0, points, cause)
    judged = [
        (flops_of(p, blocks), best["flops"], blocks, budget, p)
        for (blocks, budget), p, best in zip(cases, plans, fewest, strict=True)
        if p
    ]
    worst, together = max(m / b for m, b, *_ in judged), sum(m for m, *_ in judged) / sum(b for _, b, *_ in judged)
    figures = {
        "FLOPs over the fewest, worst case": (f"{worst:.3f}", f"{FEWEST}"),
        "FLOPs over the fewest, all cases together": (f"{together:.3f}", f"{NEARLY}, for two points"),
    }
    full, nearly = worst <= FEWEST, together <= NEARLY
    share = SHARES[0 if full else 1 if nearly else 2]
    return Verdict(check, share * points, points, _words(judged, plans, full, nearly), "", figures)


def drawn(solve: Callable, seed: int) -> list[tuple[Blocks, int]]:
    draw = random.Random(seed)
    return [_case(solve, draw, n, exact=i in EXACT) for i, n in enumerate(N_BLOCKS)] + [_hopeless(draw)]


def _words(judged: list[tuple], plans: list, full: bool, nearly: bool) -> str:
    if full:
        return "no plan that fits takes fewer FLOPs."
    if all(p is None or set(p) == {"full"} for p in plans):
        return "every plan fits, but each block is recomputed in full whatever the budget: most budgets have room."
    again, fewest, blocks, budget, plan = max(judged, key=lambda case: case[0] / case[1])
    return (
        f"every plan fits{', nearly at the fewest FLOPs' if nearly else ''}, but for {len(blocks)} blocks and "
        f"{budget:,} bytes yours recomputes {again:,} FLOPs where {fewest:,} would do; it peaks at "
        f"{peak_of(plan, blocks):,} bytes."
    )


def _does_not_fit(blocks: Blocks, budget: int, plan: list[str] | None, best: dict | None) -> str:
    if best is None:
        return "" if plan is None else f"no plan fits in {budget:,} bytes here, and yours is not None."
    if plan is None:
        return f"there is a plan for {len(blocks)} blocks that fits in {budget:,} bytes, and yours is None."
    if not isinstance(plan, list) or len(plan) != len(blocks) or any(way not in WAYS for way in plan):
        return f"a plan is a list with one of {', '.join(WAYS)} for each of {len(blocks)} blocks; yours is {plan}."
    peak = peak_of(plan, blocks)
    if peak <= budget:
        return ""
    if sum(block[way][0] for way, block in zip(plan, blocks, strict=True)) <= budget:
        return (
            f"what your plan holds for {len(blocks)} blocks is within {budget:,} bytes, its peak of {peak:,} is not: "
            "a block that goes backward is there whole, beside what earlier blocks hold."
        )
    return f"your plan for {len(blocks)} blocks has a peak of {peak:,} bytes, and the budget is {budget:,}."


def _case(solve: Callable, draw: random.Random, n_blocks: int, exact: bool = False) -> tuple[Blocks, int]:
    """Draw blocks of uneven sizes and FLOPs, and a budget between the lowest peak and the peak of keeping all.

    `exact`: the budget is what the best plan needs, to the byte. Else the smallest block is the last, so that a plan
    that fits there need not fit at the block before.
    """
    blocks = [_block(draw) for _ in range(n_blocks)]
    if not exact:
        blocks.append(blocks.pop(min(range(n_blocks), key=lambda i: blocks[i]["keep"][0])))
    low, high = (peak_of([way] * n_blocks, blocks) for way in ("full", "keep"))
    budget = int(low + draw.uniform(0.05, 0.5) * (high - low))
    return blocks, solve("fewest", blocks, budget)["peak"] if exact else budget


def _hopeless(draw: random.Random) -> tuple[Blocks, int]:
    """Draw a budget that each block fits in alone; all together need a byte more, even if all are recomputed."""
    blocks = sorted((_block(draw) for _ in range(8)), key=lambda block: block["keep"][0])
    return blocks, peak_of(["full"] * 8, blocks) - 1


def _block(draw: random.Random) -> dict[str, tuple[int, int]]:
    flops = draw.randint(200, 4000) * 1_000_000
    kept = draw.randint(100, 1000)
    selective, full = int(kept * draw.uniform(0.15, 0.6)), int(kept * draw.uniform(0.01, 0.1)) + 1
    cheap = int(flops * draw.uniform(0.02, 0.5))
    return {"keep": (kept * UNIT, 0), "selective": (selective * UNIT, cheap), "full": (full * UNIT, flops)}
