"""Judge what a step sends: gradients in fp32, once, and everything else at about half of fp32's bytes."""

from grading.checks.lab5_precision_recompute.judge_losses import reference_run, run
from grading.judge.session import Session
from grading.judge.tensor_projections import distance, vector
from grading.judge.verdict import Verdict

GATHERED_SHARE = 0.55
REDUCED_SHARE = 0.98, 1.05  # padding of small parameters differs with the units
REDUCING = ("reduce_scatter", "all_reduce", "reduce")
SAME = 1e-6  # relative: what is averaged over ranks is the same on each rank, to the bit
SMALL = 0.001  # share of the reduced bytes: a flag or a norm may have any dtype


def judge(s: Session, check: str, points: float) -> Verdict:
    mine, reference = ([_parts(r["sent"]) for r in replies] for replies in (run(s, check), reference_run(s)))
    gathered = max(m["gathered"] / r["gathered"] for m, r in zip(mine, reference, strict=True))
    reduced = [m["reduced"] / r["reduced"] for m, r in zip(mine, reference, strict=True)]
    rounded = max(m["rounded"] / r["reduced"] for m, r in zip(mine, reference, strict=True))
    most = max(reduced, key=lambda share: abs(share - 1))
    figures = {
        "sent but for gradients, over fp32's": (f"{gathered:.3f}", f"{GATHERED_SHARE}"),
        "gradients sent, over fp32's": (f"{most:.3f}", "{} to {}".format(*REDUCED_SHARE)),
        "gradients that are not sent in fp32": (f"{rounded:.1%}", "0%"),
    }
    if cause := _cause(gathered, most, rounded) or _trained_alone([r["whole"] for r in run(s, check)]):
        return Verdict(check, 0, points, cause, "", figures)
    cause = "parameters travel in 16 bits, gradients in 32, each once."
    return Verdict(check, points, points, cause, "", figures)


def _parts(sent: list[dict]) -> dict[str, float]:
    reduced = [c for c in sent if c["kind"] in REDUCING]
    return {
        "gathered": sum(c["bytes"] for c in sent if c["kind"] not in REDUCING),
        "reduced": sum(c["bytes"] for c in reduced),
        "rounded": sum(c["bytes"] for c in reduced if c["dtype"] != "Float"),
    }


def _cause(gathered: float, reduced: float, rounded: float) -> str:
    if rounded > SMALL:
        return "gradients are reduced in 16 bits: left out, the dtype of the reduction follows that of the parameters."
    if reduced < REDUCED_SHARE[0]:
        return f"only {reduced:.0%} of the gradients' bytes are sent: some are never reduced."
    if reduced > REDUCED_SHARE[1]:
        return f"{reduced:.2f} times the gradients' bytes are sent: something is reduced twice, or all_reduced whole."
    if gathered > 0.95:
        return "parameters are gathered in fp32. (Autocast casts what was gathered in 32 bits: it spares no message.)"
    if gathered > GATHERED_SHARE:
        return "some parameters are gathered in fp32 that need not be, or are gathered more than twice a step."
    return ""


def _trained_alone(whole: list[dict]) -> str:
    """Name a parameter that every rank holds whole and trains alone; "" if there is none.

    Such a parameter is too small to be missed in the bytes.
    """
    for name in sorted(set.intersection(*map(set, whole))):
        first, *others = (vector({name: rank[name]}) for rank in whole)
        if any(distance(other, first) > SAME for other in others):
            return f"after some steps {name} is another on each rank: its gradients are never reduced."
    return ""
