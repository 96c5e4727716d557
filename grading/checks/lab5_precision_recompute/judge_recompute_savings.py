"""Judge whether each way saves and costs what it should, in bytes and FLOPs; nothing is timed.

What a plan should take follows from a step of the model that keeps all, and from the blocks' price list.
"""

from grading.checks.lab5_precision_recompute.judge_recomputed_gradients import (
    missing_gradients,
    plain_run,
    plans,
    run,
)
from grading.checks.lab5_precision_recompute.plan_costs import flops_of, saved_bytes
from grading.judge.session import Session
from grading.judge.verdict import Verdict

MORE_BYTES, MORE_FLOPS = 1.05, 1.02
LEAST_FLOPS = 0.5  # of the plan's FLOPs: only a block's last layer need not be recomputed


def judge(s: Session, check: str, points: float) -> Verdict:
    mine, plain, figures, causes = run(s, check), plain_run(s), {}, []
    for plan, m in zip(plans(s), mine, strict=True):
        r = due(plan, plain)
        name = plan[0] if len(set(plan)) == 1 else "mixed"
        promised = r["flops"] - plain["flops"]
        extra, fewest = m["flops"] - plain["flops"], m["fewest_flops"] - plain["flops"]
        least, allowed = LEAST_FLOPS * promised, MORE_FLOPS * promised + 1
        figures[f"{name}: FLOPs again"] = f"{extra:,}", f"{least:,.0f} to {allowed:,.0f}"
        figures[f"{name}: bytes that wait for backward"] = _pair(m, r, "waiting_bytes")
        figures[f"{name}: bytes at the peak"] = _pair(m, r, "peak_bytes")
        if missing := missing_gradients(m, plain):
            causes.append(
                f'"{name}": {missing[0]} gets no gradient, so its part of backward is not there to be judged.'
            )
        elif words := _cause(extra, fewest, least, allowed, m, r, plain):
            causes.append(f'"{name}" {words}')
    if causes:
        return Verdict(check, 0, points, causes[0], "", figures)
    return Verdict(check, points, points, "each way holds and computes what the price list says.", "", figures)


def due(plan: list[str], plain: dict) -> dict:
    """Return what a step should take by this plan: FLOPs, bytes that wait for backward, and bytes at the peak.

    A block that goes backward is there whole, as in the plain step; what earlier blocks save is not.
    """
    blocks = [{way: tuple(price) for way, price in block.items()} for block in plain["blocks"]]
    saved = saved_bytes(plan, blocks)
    before_blocks, behind, *backward = plain["parts"]  # the parts of a plain step; blocks go backward last first
    peaks = [before_blocks - sum(saved), behind - sum(saved)]
    peaks += [peak - sum(saved[:i]) for i, peak in zip(reversed(range(len(saved))), backward, strict=True)]
    return {
        "flops": plain["flops"] + flops_of(plan, blocks),
        "waiting_bytes": plain["waiting_bytes"] - sum(saved),
        "peak_bytes": max(peaks),
    }


def _pair(m: dict, r: dict, key: str) -> tuple[str, str]:
    return f"{m[key]:,}", f"{MORE_BYTES * r[key]:,.0f}"


def _cause(extra: int, fewest: int, least: float, allowed: float, m: dict, r: dict, plain: dict) -> str:
    waiting, peak = m["waiting_bytes"] / r["waiting_bytes"], m["peak_bytes"] / r["peak_bytes"]
    if extra > allowed:
        held = f", and holds {waiting:.2f} times the bytes: it saves the wrong results" if waiting > MORE_BYTES else ""
        return f"computes {extra:,} FLOPs again, where {allowed:,.0f} are allowed{held}."
    if extra == 0 < least and m["waiting_bytes"] >= 0.98 * plain["waiting_bytes"]:
        return "recomputes nothing: as many bytes wait for backward as in the plain model."
    if waiting > MORE_BYTES:
        return f"holds {waiting:.2f} times what it should until backward: it saves more than the plan says."
    if peak > MORE_BYTES:
        return f"holds what it should until backward, but peaks at {peak:.2f} times what it should."
    if fewest < least:
        return (
            f"holds little, and computes only {fewest:,} FLOPs again, where at least {least:,.0f} are needed: what a "
            "block does not hold is to be computed again."
        )
    return ""
