"""Judge whether each way saves and costs what it should, in bytes and FLOPs; nothing is timed."""

from grading.checks.lab5_precision_recompute.gradients import plans, reference_run, run
from grading.judge.session import Session
from grading.judge.verdict import Verdict

MORE_BYTES, MORE_FLOPS = 1.05, 1.02
LEAST_FLOPS = 0.5  # of the plan's FLOPs: only a block's last layer need not be recomputed


def judge(s: Session, check: str, points: float) -> Verdict:
    mine, reference = run(s, check), reference_run(s)
    plain, figures, causes = reference[0], {}, []
    for plan, m, r in zip(plans(s), mine, reference, strict=True):
        name = plan[0] if len(set(plan)) == 1 else "mixed"
        extra, promised = m["flops"] - plain["flops"], r["flops"] - plain["flops"]
        allowed = MORE_FLOPS * promised + 1
        waiting, peak = m["waiting_bytes"] / r["waiting_bytes"], m["peak_bytes"] / r["peak_bytes"]
        figures[f"{name}: FLOPs again"] = f"{extra:,}", f"{LEAST_FLOPS * promised:,.0f} to {allowed:,.0f}"
        figures[f"{name}: bytes that wait for backward"] = _pair(m, r, "waiting_bytes")
        figures[f"{name}: bytes at the peak"] = _pair(m, r, "peak_bytes")
        if not LEAST_FLOPS * promised <= extra <= allowed or max(waiting, peak) > MORE_BYTES:
            causes.append(_cause(name, extra, allowed, waiting, peak, m, plain))
    if causes:
        return Verdict(check, 0, points, causes[0], "", figures)
    return Verdict(check, points, points, "each way holds and computes what the price list says.", "", figures)


def _pair(m: dict, r: dict, key: str) -> tuple[str, str]:
    return f"{m[key]:,}", f"{MORE_BYTES * r[key]:,.0f}"


def _cause(name: str, extra: int, allowed: float, waiting: float, peak: float, m: dict, plain: dict) -> str:
    if name == "keep":
        return "a block that should keep all is recomputed, or holds more than autograd does."
    if extra > allowed:
        more = (
            "computes products again that should have been saved"
            if waiting <= MORE_BYTES
            else "saves the wrong results"
        )
        return f'"{name}" {more}: {extra:,} FLOPs more than a plain step.'
    if extra == 0 and m["waiting_bytes"] >= 0.98 * plain["waiting_bytes"]:
        return f'"{name}" recomputes nothing: as many bytes wait for backward as in the plain model.'
    if max(waiting, peak) <= MORE_BYTES:
        return (
            f'"{name}" holds little and computes only {extra:,} FLOPs again: what backward needs was put where it is '
            "not counted."
        )
    if waiting > MORE_BYTES:
        return f'"{name}" holds {waiting:.2f} times what it should until backward: it saves more than the plan says.'
    return f'"{name}" holds little until backward, but peaks at {peak:.2f} times what it should: what comes back stays.'
