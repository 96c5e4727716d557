"""Judge what each step sends: every gradient in fp32, once, and everything else in bf16."""

from collections import Counter
from collections.abc import Iterator

from grading.checks.lab5_precision_recompute.judge_matches_fp32 import reference_run, run
from grading.judge.session import Session
from grading.judge.tensor_projections import distance, vector
from grading.judge.verdict import Verdict

SENT_SHARE, WIDE_SHARE = 0.55, 0.1  # over the reference's bytes: all but gradients, and what of it is not in bf16
REDUCED_SHARE = 0.98, 1.05  # padding of small parameters differs with the units
REDUCING = ("reduce_scatter", "all_reduce", "reduce")
WHOLE = 0.95  # over the reference's bytes: as many as in fp32
SAME = 1e-6  # relative: what is averaged over ranks is the same on each rank, to the bit


def judge(s: Session, check: str, points: float) -> Verdict:
    cause, figures = look(run(s, check), reference_run(s))
    if cause:
        return Verdict(check, 0, points, cause, "", figures)
    cause = "parameters travel in bf16, gradients in fp32, each once."
    return Verdict(check, points, points, cause, "", figures)


def look(mine: list[dict], reference: list[dict]) -> tuple[str, dict]:
    """Return what is wrong with the messages, "" if nothing is, and the figures."""
    pairs = list(_steps(mine, reference))
    sent = max(m["others"] / r["others"] for m, r in pairs)
    wide = max(m["wide"] / r["others"] for m, r in pairs)
    reduced = max((m["reduced"] / r["reduced"] for m, r in pairs), key=lambda share: abs(share - 1))
    rounded = max(m["rounded"] / r["reduced"] for m, r in pairs)
    worst = max((step for m in mine for step in m["sent"]), key=_weight)
    figures = {
        "sent but for gradients, over fp32's": (f"{sent:.3f}", f"{SENT_SHARE}"),
        "of it not in bf16, over fp32's": (f"{wide:.3f}", f"{WIDE_SHARE}"),
        "gradients sent, over fp32's": (f"{reduced:.3f}", "{} to {}".format(*REDUCED_SHARE)),
        "gradients that are not sent in fp32": (f"{rounded:.3%}", "0%"),
    }
    if rounded:
        dtypes = sorted({c["dtype"] for m in mine for step in m["sent"] for c in step if _is_rounded(c)})
        cause = f"gradients are reduced in {', '.join(dtypes)}. (A policy without reduce_dtype reduces in param_dtype.)"
    else:
        cause = (
            _of_reduced(reduced)
            or _of_others(sent, wide, worst)
            or _trained_alone([m["whole"] for m in mine])
            or _without_gradient(mine, reference)
        )
    return cause, figures


def _steps(mine: list[dict], reference: list[dict]) -> Iterator[tuple[dict, dict]]:
    """Yield what a rank sent in a step, beside what the reference's rank sent in it."""
    for m, r in zip(mine, reference, strict=True):
        for of_mine, of_reference in zip(m["sent"], r["sent"], strict=True):
            yield _parts(of_mine), _parts(of_reference)


def _parts(sent: list[dict]) -> dict[str, float]:
    reduced = [c for c in sent if c["kind"] in REDUCING]
    others = [c for c in sent if c["kind"] not in REDUCING]
    return {
        "others": sum(c["bytes"] for c in others),
        "wide": sum(c["bytes"] for c in others if c["dtype"] != "BFloat16"),
        "reduced": sum(c["bytes"] for c in reduced),
        "rounded": sum(c["bytes"] for c in reduced if _is_rounded(c)),
    }


def _is_rounded(c: dict) -> bool:
    """Return whether these messages reduce in another dtype than fp32, and are no single numbers, as a flag."""
    return c["kind"] in REDUCING and c["dtype"] != "Float" and not c["number"]


def _weight(sent: list[dict]) -> tuple[float, float]:
    parts = _parts(sent)
    return parts["wide"], parts["others"]


def _of_reduced(reduced: float) -> str:
    if reduced < REDUCED_SHARE[0]:
        return f"only {reduced:.0%} of the gradients' bytes are sent: some are not reduced."
    if reduced > REDUCED_SHARE[1]:
        return f"{reduced:.2f} times the gradients' bytes are sent: some are reduced twice, or all_reduced whole."
    return ""


def _of_others(sent: float, wide: float, worst: list[dict]) -> str:
    n_bytes = Counter()
    for c in (c for c in worst if c["kind"] not in REDUCING):
        n_bytes[c["dtype"]] += c["bytes"]
    of_all = {dtype: n / n_bytes.total() for dtype, n in n_bytes.items() if n > 0.01 * n_bytes.total()}
    if wide > WIDE_SHARE:
        others = ", ".join(sorted(of_all.keys() - {"BFloat16"}))
        hint = " (Autocast casts what was gathered before: it changes no message.)" if sent > WHOLE else ""
        return f"{wide:.2f} times fp32's bytes are sent in {others}, not in bf16, gradients not counted.{hint}"
    if sent > SENT_SHARE:
        dtypes = ", ".join(f"{share:.0%} in {dtype}" for dtype, share in of_all.items())
        return f"{sent:.2f} times fp32's bytes are sent, gradients not counted: {dtypes}."
    return ""


def _trained_alone(whole: list[dict]) -> str:
    """Name a parameter that every rank holds whole and trains alone; "" if there is none.

    Such a parameter is too small to be missed in the bytes.
    """
    for name in sorted(set.intersection(*map(set, whole))):
        first, *others = (vector({name: rank[name]}) for rank in whole)
        if any(distance(other, first) > SAME for other in others):
            return f"after some steps {name} is another on each rank: its gradients are not averaged."
    return ""


def _without_gradient(mine: list[dict], reference: list[dict]) -> str:
    """Name the parameters that get no gradient on some rank; "" if there are none."""
    missing = [name for name in reference[0]["gradients"] if any(name not in m["gradients"] for m in mine)]
    others = f", nor do {len(missing) - 1} other parameters" if len(missing) > 1 else ""
    return f"{missing[0]} gets no gradient{others}." if missing else ""
