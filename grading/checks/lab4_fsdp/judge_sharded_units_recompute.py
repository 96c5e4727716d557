"""Judge what a step holds, sends and computes: three checks of the same record, taken on the ranks.

The expected values come from shardplan.formulas, and the cause of a failure from shardplan.compare_formulas.
"""

from collections.abc import Iterable
from functools import cache

import torch

from grading.checks.lab4_fsdp import on_ranks
from grading.judge.session import Session
from grading.judge.verdict import Verdict
from shardlab.measure.sharding_evidence import Evidence, Sent
from shardlab.model import Transformer
from shardlab.tier import TIERS
from shardplan.compare_formulas import failures, mib
from shardplan.formulas import Expected, units_of

# Each promise, and what a broken one means for the student
STATES = {
    "parameters_sharded": "the parameters are not sharded",
    "gradients_sharded": "the gradients are not sharded",
    "optimizer_states_sharded": "the optimizer holds more than its share",
    "nothing_else_held": "something besides the states is kept, such as a copy of weights",
}
UNITS = {
    "freed_after_use": "units are not freed after use",
    "few_units_at_once": "too much is whole at a time",
    "gradients_reduced": "not all gradients are reduced",
    "wire_bytes": "more is sent than FULL_SHARD needs",
}
FEW_ELEMENTS = 16  # a collective this small is a count or a checksum
SPARE_MESSAGES = 1
ROUNDING = 0.01  # allowed beyond one more forward of the blocks
LEAST_DROPPED = 0.25  # share of a plain step's peak activations that must be dropped


def judge_sharded(s: Session, check: str, points: float) -> Verdict:
    """Judge what a rank keeps: 1/N of every state, and nothing else."""
    replies, expected = _account(s, check, 1), _expected(s.tier.name, 1)
    found, e = _worst(replies, expected, STATES)
    figures = {
        f"{name.replace('_', ' ')} between steps": (mib(e.held["between"][name]), mib(due))
        for name, due in (("parameters", expected.parameters), ("optimizer_states", expected.optimizer_states))
    }
    if found:
        return Verdict(check, 0, points, _in_words(found, STATES), "", figures)
    if not all(r["torchs"] for r in replies):
        return Verdict(check, 0, points, "no module is a unit of torch's FSDP: this lab is about torch's own engine.")
    cause = f"each rank keeps a {s.tier.world_size}th of parameters, gradients and optimizer states, and nothing else."
    return Verdict(check, points, points, cause, "", figures)


def judge_units(s: Session, check: str, points: float) -> Verdict:
    """Judge how much is whole at once, and in how many messages it is gathered and reduced."""
    expected = _expected(s.tier.name, 1)
    found, e = _worst(_account(s, check, 1), expected, UNITS)
    n_units, gathers, reduces = len(expected.units), _count(e, "all_gather"), _count(e, "reduce_scatter")
    due = {"all_gather": 2 * n_units - 1, "reduce_scatter": n_units}
    figures = {
        "all_gathers in a step": (f"{gathers}", f"{due['all_gather'] + SPARE_MESSAGES}"),
        "reduce_scatters in a step": (f"{reduces}", f"{due['reduce_scatter'] + SPARE_MESSAGES}"),
        "whole parameters and gradients at once": (mib(e.peak["unsharded"]), mib(expected.unsharded_peak)),
    }
    if gathers > due["all_gather"] + SPARE_MESSAGES or reduces > due["reduce_scatter"] + SPARE_MESSAGES:
        cause = (
            f"{gathers} all_gathers and {reduces} reduce_scatters, where {due['all_gather']} and "
            f"{due['reduce_scatter']} would do: the units are too small, or gathered too often."
        )
        return Verdict(check, 0, points, cause, "", figures)
    if not gathers or not reduces:
        return Verdict(check, 0, points, "nothing is gathered or reduce_scattered: nothing is in units.", "", figures)
    if gathers == reduces == 1:
        cause = "the whole model is one unit: all of it is gathered at the start, and stays until backward is through."
        return Verdict(check, 0, points, cause, "", figures)
    if found:
        return Verdict(check, 0, points, _in_words(found, UNITS), "", figures)
    cause = "one block is whole at a time, or two; each is gathered for forward and for backward, and freed."
    return Verdict(check, points, points, cause, "", figures)


def judge_recompute(s: Session, check: str, points: float) -> Verdict:
    """Judge the cost of checkpointing: FLOPs and messages compared with no checkpointing. It must be sharded, too."""
    replies, expected = _account(s, check, 2), _expected(s.tier.name, 2)
    plain = s.order_reference("record_step", tier=s.tier.name, seed=s.seed, depth=2)[0]
    again = max(r["flops"] for r in replies) - plain["flops"]
    forward = _forward_of_blocks(s.tier.name, plain["flops"])
    e, base = (_evidence(r) for r in (replies[0], plain))
    gathers, due = _count(e, "all_gather"), _count(base, "all_gather")
    kept, bar = e.peak["activations"], (1 - LEAST_DROPPED) * base.peak["activations"]
    figures = {
        "computed again, in forwards of all blocks": (f"{again / forward:.2f}", "1"),
        "all_gathers in a step": (f"{gathers}", f"{due + SPARE_MESSAGES}"),
        "most activations at once": (mib(kept), mib(bar)),
    }
    if kept > bar:
        cause = "the activations are all kept, as without checkpointing: no block is recomputed."
    elif again > forward * (1 + ROUNDING):
        cause = f"{again / forward:.2f} forwards of all blocks are computed again: something is recomputed twice."
    elif gathers > due + SPARE_MESSAGES:
        cause = f"{gathers} all_gathers where {due} would do: recomputation gathers its block once more."
    elif found := _worst(replies, expected, STATES | UNITS)[0]:
        cause = f"it is not sharded as in part 2: {_in_words(found, STATES | UNITS)}"
    elif not all(r["torchs"] for r in replies):
        cause = "no module is a unit of torch's FSDP: this lab is about torch's own engine."
    else:
        cause = "activations are dropped, and cost at most one more forward of the blocks, and no message."
        return Verdict(check, points, points, cause, "", figures)
    return Verdict(check, 0, points, cause, "", figures)


def _account(s: Session, check: str, depth: int) -> list[dict]:
    return s.order(check, "record_step", tier=s.tier.name, seed=s.seed, depth=depth)


def _worst(replies: list[dict], expected: Expected, names: Iterable[str]) -> tuple[dict[str, str], Evidence]:
    """Return the broken promises and evidence of the first rank that breaks any; else {} and rank 0's evidence."""
    for reply in replies:
        broken = failures(_evidence(reply), expected)
        if found := {name: broken[name] for name in names if name in broken}:
            return found, _evidence(reply)
    return {}, _evidence(replies[0])


def _in_words(found: dict[str, str], meanings: dict[str, str]) -> str:
    name = next(iter(found))
    return f"{meanings[name]}: {found[name]}."


def _evidence(reply: dict) -> Evidence:
    e = reply["evidence"]
    return Evidence(**e | {name: tuple(Sent(**s) for s in e[name]) for name in ("sent", "sent_in_no_sync")})


def _count(e: Evidence, kind: str) -> int:
    return sum(s.kind == kind and s.elements > FEW_ELEMENTS for s in e.sent)


@cache
def _expected(tier: str, depth: int) -> Expected:
    with torch.device("meta"):
        model = Transformer(on_ranks.config_of(TIERS[tier], depth))
    return Expected("FULL_SHARD", units_of(model, model.blocks), TIERS[tier].world_size)


def _forward_of_blocks(tier: str, step_flops: int) -> float:
    """Return the FLOPs of the blocks' forward: a third of the step's (backward takes two), less the output layer's."""
    t = TIERS[tier]
    return step_flops / 3 - 2 * t.micro_batch * t.seq_len * t.model.dim * t.model.vocab_size
