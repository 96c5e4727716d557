"""Judge what one step of the repaired program holds and sends, against the budgets in the notebook."""

from grading.checks.lab6_profile import on_ranks
from grading.judge.session import Session
from grading.judge.verdict import Verdict


def judge_memory(s: Session, check: str, points: float) -> Verdict:
    """Judge the bytes at the peak and between steps."""
    ranks, budget = _account(s, check), on_ranks.BUDGETS
    if cause := _not_computed(ranks):
        return Verdict(check, 0, points, cause)
    worst = max(ranks, key=lambda r: sum(r["peak"].values()))
    peak, kept = sum(worst["peak"].values()), max(sum(r["kept"].values()) for r in ranks)
    figures = {
        "bytes at the peak": (f"{peak:,}", f"{budget['peak_bytes']:,}"),
        "bytes between steps": (f"{kept:,}", f"{budget['kept_bytes']:,}"),
    }
    if kept > budget["kept_bytes"]:
        cause = "between steps a rank holds more than its quarter of parameters and states: they are not sharded"
        return Verdict(check, 0, points, cause + " over all four ranks, or not freed.", "", figures)
    if peak > budget["peak_bytes"]:
        return Verdict(check, 0, points, _too_much(worst), "", figures)
    return Verdict(check, points, points, "it fits.", "", figures)


def _too_much(rank: dict) -> str:
    held = {name: n for name, n in rank["peak"].items() if n}
    words = ", ".join(f"{name} {n:,}" for name, n in sorted(held.items(), key=lambda kv: -kv[1])[:4])
    if rank["units"] == 1:
        why = "the model is one unit, so all of it is whole at once, and its gradients too"
    else:
        why = "whole parameters and whole gradients of many blocks at once; or more is gathered ahead than is needed"
    return f"too much at the peak: {why}. Held then: {words}."


def judge_messages(s: Session, check: str, points: float) -> Verdict:
    """Judge number and bytes of the messages; half the points if only one is within its budget."""
    ranks, budget = _account(s, check), on_ranks.BUDGETS
    if cause := _not_computed(ranks):
        return Verdict(check, 0, points, cause)
    mine = max(ranks, key=lambda r: r["sent"])
    number = sum(mine["kinds"].values())
    figures = {
        "messages a step": (f"{number}: {_kinds(mine)}", f"{budget['messages']}"),
        "bytes that a rank sends": (f"{mine['sent']:,.0f}", f"{budget['sent_bytes']:,}"),
    }
    kept = (number <= budget["messages"]) + (mine["sent"] <= budget["sent_bytes"])
    cause = "few messages, and nothing goes out more often than need be." if kept == 2 else _too_many(mine)
    return Verdict(check, points * kept / 2, points, cause, "", figures)


def _kinds(rank: dict) -> str:
    return ", ".join(f"{n} {kind}" for kind, n in rank["kinds"].items())


def _too_many(rank: dict) -> str:
    units, kinds, n = rank["units"], rank["kinds"], on_ranks.N_MICRO_BATCHES
    if units > 2 * on_ranks.N_LAYERS:
        return f"{units} units for {on_ranks.N_LAYERS} blocks: each of their messages pays the link's latency."
    if kinds.get("reduce_scatter", 0) >= n * units and kinds.get("all_gather", 0) > units * n:
        return (
            "parameters are gathered again for each backward, and gradients reduced in each micro-batch: "
            "a step needs one of the two at most."
        )
    if kinds.get("all_reduce", 0) > 1:
        return f"{kinds['all_reduce']} all_reduces in a step: one is enough to average the loss."
    return f"a step sends {_kinds(rank)}, for {units} units and {n} micro-batches."


def _not_computed(ranks: list[dict]) -> str:
    """Return why the step is incomplete; "" if all micro-batches went through the model.

    Merged or dropped micro-batches would need fewer messages.
    """
    forwards, due = min(r["forwards"] for r in ranks), on_ranks.N_LAYERS * on_ranks.N_MICRO_BATCHES
    if forwards >= due:
        return ""
    return (
        f"{forwards} forwards of blocks in a step, and there should be {due}: each micro-batch goes through the model "
        "by itself."
    )


def _account(s: Session, check: str) -> list[dict]:
    return s.order(check, "record_step", world_size=on_ranks.WORLD_SIZE, device="cpu", seed=s.seed)


def reference_account(s: Session) -> None:
    s.order_reference("record_step", world_size=on_ranks.WORLD_SIZE, device="cpu", seed=s.seed)
