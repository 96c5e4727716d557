"""Judge whether the shards live on the host: what a step asks to copy to the device and back, and its losses."""

from grading.checks.lab4_fsdp import on_ranks
from grading.checks.lab4_fsdp.budget import TOLERANCE, loss_error, reference_losses, why_losses_differ
from grading.checks.lab4_fsdp.offload_cost import copied_bytes
from grading.judge.session import Session
from grading.judge.verdict import Verdict

CLOSE = 0.01  # relative, of bytes
HALF = 0.5  # share of the expected bytes, each way, for half the points


def judge(s: Session, check: str, points: float) -> Verdict:
    replies = s.order(check, "offload", tier=s.tier.name, seed=s.seed)
    due_in, due_out = copied_bytes(on_ranks.config_of(s.tier, 1), s.tier.world_size)
    to_device, to_host = (min(r[way] for r in replies) for way in ("to_device", "to_host"))
    most_in, most_out = (max(r[way] for r in replies) for way in ("to_device", "to_host"))
    mine, right = [r["losses"] for r in replies], reference_losses(s)
    error = loss_error(mine, right)
    figures = {
        "bytes to the device in a step": (f"{to_device:,}", f"{due_in:,.0f}"),
        "bytes to the host in a step": (f"{to_host:,}", f"{due_out:,.0f}"),
        "losses beside DDP's, relative difference": (f"{error:.1e}", f"{TOLERANCE:g}"),
    }
    if error > TOLERANCE:
        return Verdict(check, 0, points, why_losses_differ(mine, right, s.seed), "", figures)
    if max(most_in / due_in, most_out / due_out) > 1 + CLOSE:
        cause = "more is copied than the shards, twice in and their gradients once out."
        return Verdict(check, 0, points, cause, "", figures)
    share = min(to_device / due_in, to_host / due_out)
    if share >= 1 - CLOSE and not any(r["on_device"] for r in replies):
        cause = "the shards live on the host: they come in for each all_gather, and gradients go out."
        return Verdict(check, points, points, cause, "", figures)
    if share >= HALF:
        cause = f"{1 - share:.0%} of what should cross never does: some unit keeps its shards on the device."
        return Verdict(check, points / 2, points, cause, "", figures)
    cause = "parameters or gradients stay on the device: FSDP copies hardly anything between device and host."
    return Verdict(check, 0, points, cause, "", figures)
