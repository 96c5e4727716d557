"""Compare the gathered weights with those that one process rounds, for matrices, formats and cuts that are drawn."""

import torch

from grading.checks.lab10_eight_bits import draw, truth
from grading.checks.lab10_eight_bits.draw import Instance
from grading.checks.lab10_eight_bits.on_ranks import unpacked
from grading.judge.session import Session
from grading.judge.verdict import Verdict


def judge(s: Session, check: str, points: float) -> Verdict:
    """Give full points if no instance is wrong; half if only instances are wrong in which a border cuts a row."""
    replies = s.order(check, "gather", device="cpu", seed=s.seed)
    instances = draw.instances(s.seed, s.tier.world_size)
    faults = []
    for i, instance in enumerate(instances):
        flat = draw.flat(draw.weights(instance, s.seed + i))
        faults.append(fault([reply[i] for reply in replies], flat, instance))
    wrong = [(instance, words) for instance, words in zip(instances, faults, strict=True) if words]
    figures = {"weights gathered rightly": (f"{len(instances) - len(wrong)}", f"{len(instances)}")}
    if not wrong:
        cause = "every rank has the weights that one process rounds, whatever a border cuts."
        return Verdict(check, points, points, cause, "", figures)
    only_cut = all(instance.cuts_a_row for instance, _ in wrong)
    got = points / 2 if only_cut else 0
    instance, words = wrong[0]
    where = "only where a border of shards lies inside a row: " if only_cut else ""
    setting = f"With shapes {instance.shapes}, formats {instance.formats} and cuts {instance.cuts}"
    return Verdict(check, got, points, f"{where}{words} ({setting})", "", figures)


def fault(replies: list[dict], flat: torch.Tensor, instance: Instance) -> str:
    """Return what is wrong with a gather, in words; "" if nothing is. `replies` are those of all ranks."""
    for rank, reply in enumerate(replies):
        if reply["form"]:
            return f"on rank {rank} {reply['form']}."
    found = unpacked(replies[0]["whole"], torch.float32)
    scale = truth.scales(flat, instance.group_sizes)
    wrong = truth.wrong_places(found, flat, scale)
    if wrong.any():
        return truth.mistake(found, flat, instance) or _where(found, flat, scale, wrong)
    others = [rank for rank, reply in enumerate(replies) if reply["bits"] != replies[0]["bits"]]
    if others:
        return f"the weights of rank {others[0]} differ from those of rank 0, if only in their last bits."
    return ""


def _where(found: torch.Tensor, flat: torch.Tensor, scale: torch.Tensor, wrong: torch.Tensor) -> str:
    if not torch.isfinite(found).all():
        zeros = bool((flat[~torch.isfinite(found)] == 0).all())
        why = ": a group of zeros has no largest number to divide by" if zeros else ""
        return f"{int((~torch.isfinite(found)).sum())} weights are not finite{why}."
    i = int(wrong.nonzero()[0])
    due = float(truth.rounded(flat[i : i + 1], scale[i : i + 1]))
    clipped = (found.abs() < 0.9 * flat.abs()) & (flat.double().abs() / scale > truth.TOP * 0.99)
    often = f"{int(wrong.sum())} of {len(flat)} weights are wrong."
    if clipped.any():
        return f"{often} The largest numbers of {int(clipped.sum())} groups were clipped: a scale is too small."
    return f"{often} The first is {float(flat[i]):.6g}, arrived as {float(found[i]):.6g}, and {due:.6g} is due."
