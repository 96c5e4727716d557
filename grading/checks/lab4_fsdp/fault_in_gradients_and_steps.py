"""Judge that a wrapped model learns as DDP does: DDP's gradients, AdamW's steps, all in float32."""

from math import isfinite

import torch

from grading.checks.lab4_fsdp.gradients_and_steps_on_ranks import SCALES
from grading.judge.session import Session
from grading.judge.tensor_projections import distance, factor

GRADIENTS = 2e-5  # relative: another order of sums gives 1e-7; messages in fp16 give 2e-4
STEPS = 5e-5  # of a step's length: AdamW's other kernels give 1e-7; no decay gives 2e-4
_FLOATS = ("Half", "BFloat16", "Double")  # as the flight recorder names them


def figures(s: Session, check: str, depth: int) -> dict[str, tuple[str, str]]:
    mine, right = _replies(s, check, depth)
    errors = [_gradient_error(mine, right, i) for i in (0, 1)]
    return {
        "gradients beside DDP's, relative difference": (f"{max(errors):.1e}", f"{GRADIENTS:g}"),
        "steps beside AdamW's, relative difference": (f"{_step_error(mine)[0]:.1e}", f"{STEPS:g}"),
    }


def fault(s: Session, check: str, depth: int) -> str:
    """Return what is wrong with gradients, precision or optimizer, in words; empty if nothing is."""
    mine, right = _replies(s, check, depth)
    worst_step, at = _step_error(mine)
    return (
        _of_precision(mine)
        or _without_gradient(mine)
        or _of_gradients(mine, right, 0)
        or _of_optimizer(mine)
        or _of_gradients(mine, right, 1)
        or (_of_step(worst_step, at) if worst_step > STEPS else "")
    )


def _replies(s: Session, check: str, depth: int) -> tuple[list[dict], dict]:
    arguments = dict(tier=s.tier.name, seed=s.seed, depth=depth)
    mine = s.order(check, "learn", **arguments)
    return mine, _whole(s.order_reference("learn", **arguments), mine)


def _whole(reference: list[dict], mine: list[dict]) -> dict:
    """Return the reference's whole gradients of each batch, and the elements that they have."""
    n = len({tuple(r["gradients"][0]["waves"]) for r in reference})  # 1 under DDP: all ranks have the whole gradient
    shards = reference if n > 1 else reference[:1]
    return {"gradients": [_sum(shards, i) for i in (0, 1)], "n_ranks": len(mine)}


def _sum(replies: list[dict], i: int) -> dict:
    parts = [r["gradients"][i] for r in replies]
    waves = torch.tensor([p["waves"] for p in parts], dtype=torch.float64).sum(0)
    return {"waves": waves} | {name: sum(p[name] for p in parts) for name in ("squares_of_norms", "elements")}


def _found(mine: list[dict], right: dict, i: int) -> dict:
    """Return the sum of all shards, or the mean of the copies if ranks keep whole gradients."""
    found = _sum(mine, i)
    copies = max(1, round(found["elements"] / right["gradients"][i]["elements"]))
    return {name: value / copies for name, value in found.items()}


def _gradient_error(mine: list[dict], right: dict, i: int) -> float:
    found, due = _found(mine, right, i), right["gradients"][i]
    norms = abs(found["squares_of_norms"] / due["squares_of_norms"] - 1) if due["squares_of_norms"] else 0.0
    return max(distance(found["waves"], due["waves"]), norms if isfinite(norms) else float("inf"))


def _step_error(mine: list[dict]) -> tuple[float, int]:
    """Return the largest error of a step on any rank, and which step has it."""
    errors = [(max(r["step_errors"][i] for r in mine), i) for i in range(len(SCALES))]
    return max(errors)


def _of_precision(mine: list[dict]) -> str:
    for what in ("weights", "matrix products", "messages", "gradients", "optimizer states"):
        found = {name for r in mine for name in r["dtypes"][what]}
        wrong = {d for d in found if d in _FLOATS or (d.startswith("torch.") and d != "torch.float32")}
        if wrong:
            return f"{what} are in {' and '.join(sorted(wrong))}, where all is float32."
    return ""


def _without_gradient(mine: list[dict]) -> str:
    missing = sorted({name for r in mine for name in r["without_gradient"]})
    return f"after backward {_first_of(missing)} no gradient." if missing else ""


def _of_gradients(mine: list[dict], right: dict, i: int) -> str:
    if _gradient_error(mine, right, i) <= GRADIENTS:
        return ""
    found, due = _found(mine, right, i)["waves"], right["gradients"][i]["waves"]
    words = "the gradients" if i == 0 else f"with a loss {SCALES[i]:g} times as large, the gradients"
    if not torch.isfinite(found).all():
        return f"{words} are not finite."
    times = factor(found, due)
    if i and distance(found - due, right["gradients"][0]["waves"] / SCALES[i]) < GRADIENTS * SCALES[i]:
        return "the second batch's gradients still have the first batch's in them: zero_grad did not clear these."
    if times and distance(found / times, due) <= GRADIENTS:
        if abs(times - 1) <= GRADIENTS:
            return f"{words} are DDP's but for the norms'."
        as_sum = " (their sum over ranks; DDP's are the mean)" if abs(times - right["n_ranks"]) < GRADIENTS else ""
        return f"{words} are {times:.4g} times DDP's{as_sum}."
    return f"{words} are not DDP's: they differ by {distance(found, due):.1e} of their length."


def _of_optimizer(mine: list[dict]) -> str:
    for r in mine:
        if not r["is_adamw"]:
            return f"the optimizer is {r['optimizer']}, where torch.optim.AdamW is asked for."
        if r["not_trained"]:
            return f"the model computes with what the optimizer does not have: {_first_of(r['not_trained'], '')}."
        if r["settings"]:
            return f"AdamW's settings are not its defaults with the lr that is given: {', '.join(r['settings'])}."
    return ""


def _of_step(error: float, at: int) -> str:
    return (
        f"step {at + 1} of {len(SCALES)} does not move the weights as AdamW would with backward's gradients: it is "
        f"{error:.1e} of the way off."
    )


def _first_of(names: list[str], verb: str = " has") -> str:
    """Name the first, and say how many more there are."""
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{names[0]}{more}{' have' if more and verb else verb}"
