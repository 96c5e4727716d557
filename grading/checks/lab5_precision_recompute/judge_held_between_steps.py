"""Judge what a rank holds between steps: its share of parameters and states, in fp32, and nothing else."""

from grading.checks.lab5_precision_recompute.judge_losses import reference_run, run
from grading.judge.session import Session
from grading.judge.verdict import Verdict

MORE = 1.15  # allowed over the reference's bytes; a bf16 copy of the model would give 1.7 on four ranks


def judge(s: Session, check: str, points: float) -> Verdict:
    mine, reference = run(s, check), reference_run(s)
    worst = max(mine, key=lambda reply: sum(reply["held"].values()))
    held, allowed = sum(worst["held"].values()), MORE * max(sum(r["held"].values()) for r in reference)
    parameters, states = ([d for r in mine for d in r["dtypes"][k]] for k in ("parameters", "optimizer"))
    figures = {
        "held between steps": (f"{held:,} bytes", f"{allowed:,.0f} bytes"),
        "dtype of the parameters": (", ".join(sorted(set(parameters))) or "none", "float32"),
        "dtype of AdamW's states": (", ".join(sorted(set(states))) or "none", "float32"),
    }
    if cause := _cause(worst, reference[0], set(parameters), set(states), held > allowed):
        return Verdict(check, 0, points, cause, "", figures)
    return Verdict(check, points, points, "a rank holds its share in fp32, and nothing else.", "", figures)


def _cause(mine: dict, reference: dict, parameters: set[str], states: set[str], too_much: bool) -> str:
    if parameters != {"float32"}:
        return (
            f"parameters are held in {', '.join(sorted(parameters))}: there is no fp32 master, and small updates are "
            "lost."
        )
    if states != {"float32"}:
        return f"AdamW's states are in {', '.join(sorted(states)) or 'no dtype at all'}: moments add up over steps."
    if mine["shard_bytes"] > MORE * reference["shard_bytes"]:
        return (
            f"each rank holds {mine['shard_bytes'] / reference['shard_bytes']:.1f} times its share of the parameters: "
            "they are not sharded, or not all of them."
        )
    if too_much:
        more = sum(mine["held"].values()) - sum(reference["held"].values())
        return f"shards and states are right, and {more:,} bytes more stay from step to step: is a copy kept?"
    return ""
