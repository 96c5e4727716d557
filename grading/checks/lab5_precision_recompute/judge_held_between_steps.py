"""Judge what a rank holds between steps: its share of parameters and states, in fp32, and nothing else."""

from grading.checks.lab5_precision_recompute.judge_matches_fp32 import reference_run, run
from grading.judge.session import Session
from grading.judge.verdict import Verdict

HELD_SHARE = 0.98, 1.05  # of the reference's bytes; a bf16 copy of the model would give 1.7 on four ranks


def judge(s: Session, check: str, points: float) -> Verdict:
    cause, figures = look(run(s, check), reference_run(s))
    if cause:
        return Verdict(check, 0, points, cause, "", figures)
    return Verdict(check, points, points, "a rank holds its share in fp32, and nothing else.", "", figures)


def look(mine: list[dict], reference: list[dict]) -> tuple[str, dict]:
    """Return what is wrong with what any rank holds, "" if nothing is, and the figures."""
    due = max(_bytes(r) for r in reference)
    worst = max(mine, key=lambda m: abs(_bytes(m) / due - 1))
    parameters, states = ({d for m in mine for d in m["dtypes"][k]} for k in ("parameters", "optimizer"))
    least, most = (share * due for share in HELD_SHARE)
    figures = {
        "held between steps": (f"{_bytes(worst):,} bytes", f"{least:,.0f} to {most:,.0f} bytes"),
        "dtype of the parameters": (", ".join(sorted(parameters)) or "none", "float32"),
        "dtype of AdamW's states": (", ".join(sorted(states)) or "none", "float32"),
    }
    return _cause(mine, reference, parameters, states, _bytes(worst), due), figures


def _bytes(reply: dict) -> int:
    return sum(reply["held"].values())


def _cause(mine: list[dict], reference: list[dict], parameters: set[str], states: set[str], held: int, due: int) -> str:
    if parameters != {"float32"}:
        return (
            f"parameters are held in {', '.join(sorted(parameters)) or 'no dtype at all'}: there is no fp32 master, "
            "and small updates are lost."
        )
    if states != {"float32"}:
        return f"AdamW's states are in {', '.join(sorted(states)) or 'no dtype at all'}: moments add up over steps."
    shards = max(m["shard_bytes"] for m in mine) / max(r["shard_bytes"] for r in reference)
    if shards > HELD_SHARE[1]:
        return f"a rank holds {shards:.2f} times its share of the parameters: they are not sharded, or not all of them."
    if held > HELD_SHARE[1] * due:
        return f"shards and states are right, and {held - due:,} bytes more stay from step to step: is a copy kept?"
    if held < HELD_SHARE[0] * due:
        return f"a rank holds {due - held:,} bytes less than its share of the parameters and of AdamW's two states."
    return ""
