"""Judge what steps of the repaired program hold and send, against the budgets in the notebook."""

from grading.checks.lab6_profile import on_ranks
from grading.judge.session import Session
from grading.judge.verdict import Verdict

LEAST_BYTES = (1 - 1 / on_ranks.WORLD_SIZE) * on_ranks.MODEL_BYTES  # of the shards that a rank sends or gets
ONCE = {"all_gather": "to gather each parameter once", "reduce_scatter": "to reduce each gradient once"}


def judge_memory(s: Session, check: str, points: float) -> Verdict:
    """Judge the bytes at the peak and between steps."""
    steps, budget = _account(s, check), on_ranks.BUDGETS
    if cause := _not_computed(steps):
        return Verdict(check, 0, points, cause)
    worst, most = (max(steps, key=lambda step: sum(step[when].values())) for when in ("peak", "kept"))
    peak, kept = sum(worst["peak"].values()), sum(most["kept"].values())
    figures = {
        "bytes at the peak": (f"{peak:,}", f"{budget['peak_bytes']:,}"),
        "bytes between steps": (f"{kept:,}", f"{budget['kept_bytes']:,}"),
    }
    if kept > budget["kept_bytes"]:
        return Verdict(
            check, 0, points, f"too much between steps: {_in_words(most['kept'])}.{_whole(most)}", "", figures
        )
    if peak > budget["peak_bytes"]:
        one_unit = " The model is one unit, so all of it is whole at once." if worst["units"] == 1 else ""
        return Verdict(check, 0, points, f"too much at the peak: {_in_words(worst['peak'])}.{one_unit}", "", figures)
    return Verdict(check, points, points, "it fits.", "", figures)


def _in_words(held: dict) -> str:
    """Return what is held, the largest first, in bytes and in copies of the model."""
    largest = sorted(((n, name) for name, n in held.items() if n), reverse=True)[:4]
    return "held then are " + ", ".join(
        f"{name} {n:,} ({n / on_ranks.MODEL_BYTES:.2f} copies of the model)" for n, name in largest
    )


def _whole(step: dict) -> str:
    if not (names := step["not_sharded"]):
        return " All parameters are sharded then."
    return f" Not sharded over all {on_ranks.WORLD_SIZE} ranks then: {len(names)} parameters, e.g. {names[0]}."


def judge_messages(s: Session, check: str, points: float) -> Verdict:
    """Judge number and bytes of the messages; half the points if only one is within its budget."""
    steps, budget = _account(s, check), on_ranks.BUDGETS
    if cause := _not_computed(steps):
        return Verdict(check, 0, points, cause)
    most, mine = max(steps, key=_number), max(steps, key=lambda step: step["sent"])
    number = _number(most)
    figures = {
        "messages a step": (f"{number}: {_kinds(most)}", f"{budget['messages']}"),
        "bytes that a rank sends": (f"{mine['sent']:,.0f}", f"{budget['sent_bytes']:,}"),
    }
    for kind in ("all_gather", "reduce_scatter"):
        least = min(step["sent_by"][kind] for step in steps)
        figures[f"of these by {kind}s"] = (f"{least:,.0f}", f"at least {LEAST_BYTES:,.0f}")
        if least < LEAST_BYTES:
            cause = f"a rank sends {least:,.0f} bytes of {kind}s in a step: {ONCE[kind]} takes {LEAST_BYTES:,.0f}."
            return Verdict(check, 0, points, cause, "", figures)
    kept = (number <= budget["messages"]) + (mine["sent"] <= budget["sent_bytes"])
    cause = "no more messages than may be sent, and no more bytes." if kept == 2 else _too_many(most)
    return Verdict(check, points * kept / 2, points, cause, "", figures)


def _number(step: dict) -> int:
    return sum(step["kinds"].values())


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


def _not_computed(steps: list[dict]) -> str:
    """Return why a step is incomplete; "" if all micro-batches went through the model.

    Merged or dropped micro-batches would need fewer messages.
    """
    forwards, due = min(step["forwards"] for step in steps), on_ranks.N_LAYERS * on_ranks.N_MICRO_BATCHES
    if forwards >= due:
        return ""
    return (
        f"{forwards} forwards of blocks in a step, and there should be {due}: each micro-batch goes through the model "
        "by itself."
    )


def _account(s: Session, check: str) -> list[dict]:
    """Return the memory and messages of each rank's each step."""
    place = {"world_size": on_ranks.WORLD_SIZE, "device": "cpu"}
    return [step for rank in s.order(check, "record_step", **place, seed=s.seed) for step in rank]


def reference_account(s: Session) -> None:
    s.order_reference("record_step", world_size=on_ranks.WORLD_SIZE, device="cpu", seed=s.seed)
