"""Judge whether the shards live on the host: what a step asks to copy, in which units, and what it learns."""

from grading.checks.lab4_fsdp import fault_in_gradients_and_steps, unit_messages
from grading.checks.lab4_fsdp.judge_peak_and_losses import TOLERANCE, loss_error, reference_losses, which_loss_differs
from grading.checks.lab4_fsdp.judge_sharded_units_recompute import units_due
from grading.checks.lab4_fsdp.refused_finished_code import in_words
from grading.checks.lab4_fsdp.unit_messages import Message
from grading.judge.session import Session
from grading.judge.verdict import Verdict

CLOSE = 0.01  # relative, of bytes
HALF = 0.5  # share of the expected bytes, each way, for half the points


def judge(s: Session, check: str, points: float) -> Verdict:
    replies, units = s.order(check, "offload", tier=s.tier.name, seed=s.seed), units_due(s.tier.name, 1)
    sent = [[Message(*m) for m in r["sent"]] for r in replies]
    due_in, due_out = unit_messages.copied_bytes(units)
    if all(unit_messages.root_again(m, units) for m in sent):
        due_in += 4 * units.root_shard
    to_device, to_host = (min(r[way] for r in replies) for way in ("to_device", "to_host"))
    most_in, most_out = (max(r[way] for r in replies) for way in ("to_device", "to_host"))
    mine, right = [r["losses"] for r in replies], reference_losses(s)
    error = loss_error(mine, right)
    figures = {
        "bytes to the device in a step": (f"{to_device:,}", f"{due_in:,.0f}"),
        "bytes to the host in a step": (f"{to_host:,}", f"{due_out:,.0f}"),
        "losses beside DDP's, relative difference": (f"{error:.1e}", f"{TOLERANCE:g}"),
    }
    wrong = _not_sharded(replies, sent, units) or fault_in_gradients_and_steps.fault(s, check, 1)
    if not wrong and error > TOLERANCE:
        wrong = which_loss_differs(mine, right)
    if wrong:
        return Verdict(check, 0, points, wrong, "", figures)
    if max(most_in / due_in, most_out / due_out) > 1 + CLOSE:
        cause = "more is copied than the shards, twice in and their gradients once out."
        return Verdict(check, 0, points, cause, "", figures)
    share = min(to_device / due_in, to_host / due_out)
    on_device = max(r["on_device"] for r in replies)
    if share >= 1 - CLOSE and not on_device:
        cause = "the shards live on the host: they come in for each all_gather, and gradients go out."
        return Verdict(check, points, points, cause, "", figures)
    if on_device and share >= 1 - CLOSE:
        cause = f"{on_device:,} bytes of parameters and optimizer states are on the device after a step."
        return Verdict(check, points / 2, points, cause, "", figures)
    if share >= HALF:
        cause = f"{1 - share:.0%} of what should cross never does."
        return Verdict(check, points / 2, points, cause, "", figures)
    cause = f"FSDP copies hardly anything between device and host: {share:.0%} of what should cross."
    return Verdict(check, 0, points, cause, "", figures)


def _not_sharded(replies: list[dict], sent: list[list[Message]], units: unit_messages.Units) -> str:
    """Return in words why this is not `fully_shard` by block; empty if it is."""
    if not all(r["torchs"] for r in replies):
        return "no module is a unit of torch's fully_shard."
    faults = (unit_messages.wrong_sizes(m, units) or unit_messages.wrong_counts(m, units) for m in sent)
    return in_words(replies) or next(filter(None, faults), "")
