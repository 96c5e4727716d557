"""Judge what a step holds, sends and computes: three checks of the same record, taken on the ranks. See unit_messages.

The expected values come from shardplan.formulas, and the cause of a failure from shardplan.compare_formulas.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache

import torch

from grading.checks.lab4_fsdp import on_ranks, unit_messages
from grading.checks.lab4_fsdp.refused_finished_code import in_words
from grading.checks.lab4_fsdp.unit_messages import SPARE_MESSAGES, Message, Units, gathers, root_again
from grading.judge.session import Session
from grading.judge.verdict import Verdict
from shardlab.model import ModelConfig, Transformer
from shardlab.tier import TIERS
from shardplan.compare_formulas import failures, mib
from shardplan.formulas import Expected, units_of
from shardplan.sharding_evidence import Evidence, Sent

# Each promise, and what a broken one means for the student
STATES = {
    "parameters_sharded": "the parameters are not sharded",
    "gradients_sharded": "a rank holds more than its share of the gradients",
    "optimizer_states_sharded": "the optimizer holds more than its share",
    "nothing_else_held": "something besides the states is kept",
}
OWN_STATES = [name for name in STATES if name != "nothing_else_held"]
UNITS = {
    "freed_after_use": "units are not freed after use",
    "few_units_at_once": "too much is whole at a time",
    "gradients_reduced": "not all gradients are reduced",
    "wire_bytes": "more is sent than FULL_SHARD needs",
}
ROUNDING = 0.01  # allowed beyond one more forward of the blocks
BLOCKS_IN_FORWARD = 3  # whole at once: one in use, one on its way, and the message of one
LEAST_AGAIN = 0.25  # of a forward of the blocks must be computed again
LEAST_DROPPED = 0.25  # share of a plain step's peak activations that must be dropped


def judge_sharded(s: Session, check: str, points: float) -> Verdict:
    """Judge what a rank keeps: 1/N of every state, and nothing else."""
    replies, expected = _account(s, check, 1), _expected(s.tier.name, 1)
    found, e = _worst(replies, expected, STATES)
    figures = {
        f"{name.replace('_', ' ')} between steps": (mib(e.held["between"][name]), mib(due))
        for name, due in (("parameters", expected.parameters), ("optimizer_states", expected.optimizer_states))
    }
    wrong = _in_words(found, STATES) or _not_torchs(replies) or _of_other(_not_kept, s, replies, 1)
    cause = f"each rank keeps a {s.tier.world_size}th of parameters, gradients and optimizer states, and nothing else."
    return Verdict(check, 0 if wrong else points, points, wrong or cause, "", figures)


def _not_kept(replies: list[dict], tier: str, depth: int, other: bool) -> str:
    """Return in words which state is not sharded. What else is kept may be of an earlier model."""
    return _in_words(_worst(replies, _expected(tier, depth, other), OWN_STATES)[0], STATES)


def _of_other(wrong_in: Callable[..., str], s: Session, replies: list[dict], depth: int) -> str:
    """Return what is wrong with the other model, which was wrapped after the first."""
    wrong = wrong_in([r["other"] for r in replies], s.tier.name, depth, True)
    n_blocks = units_due(s.tier.name, depth, True).n_blocks
    return f"right for a first model, and wrong for a second, of {n_blocks} narrower blocks: {wrong}" if wrong else ""


def _not_torchs(replies: list[dict]) -> str:
    if not all(r["torchs"] for r in replies):
        return "no module is a unit of torch's FSDP: this lab is about torch's own engine."
    return in_words(replies)


def judge_units(s: Session, check: str, points: float) -> Verdict:
    """Judge how much is whole at once, and in how many messages it is gathered and reduced."""
    replies, units = _account(s, check, 1), units_due(s.tier.name, 1)
    wrong, e = _first_not_by_unit(replies, s.tier.name, 1)
    due = {"all_gather": 2 * units.n_blocks + 1, "reduce_scatter": units.n_blocks + 1}
    sent = _messages(e)
    figures = {
        f"{kind}s in a step": (f"{len(gathers(sent, kind))}", f"{n + SPARE_MESSAGES}") for kind, n in due.items()
    }
    figures["whole parameters and gradients at once"] = (
        mib(e.peak["unsharded"]),
        mib(_expected(s.tier.name, 1).unsharded_peak),
    )
    wrong = wrong or _of_other(_not_by_unit, s, replies, 1)
    cause = "one block is whole at a time, or two; each is gathered for forward and for backward, and freed."
    return Verdict(check, 0 if wrong else points, points, wrong or cause, "", figures)


def _not_by_unit(replies: list[dict], tier: str, depth: int, other: bool = False) -> str:
    return _first_not_by_unit(replies, tier, depth, other)[0]


def _first_not_by_unit(replies: list[dict], tier: str, depth: int, other: bool = False) -> tuple[str, Evidence]:
    """Return in words what the first rank that has not one unit a block does, and its evidence; else an empty text."""
    units = units_due(tier, depth, other)
    most = 4 * (units.root + BLOCKS_IN_FORWARD * units.block)
    for reply in replies:
        e = _evidence(reply)
        sent, expected = _messages(e), _expected(tier, depth, other)
        if root_again(sent, units):
            expected = replace(expected, root_reshards=True)
        broken = failures(e, expected)
        found = _in_words({name: broken[name] for name in UNITS if name in broken}, UNITS)
        if wrong := unit_messages.wrong_sizes(sent, units) or found or unit_messages.wrong_counts(sent, units):
            return wrong, e
        if (whole := reply["whole_in_forward"]) > most + expected.spare_bytes:
            words = f"the root and {BLOCKS_IN_FORWARD} blocks have {mib(most)}"
            return f"in forward {mib(whole)} are whole or on their way at once, and {words}.", e
    return "", _evidence(replies[0])


def judge_recompute(s: Session, check: str, points: float) -> Verdict:
    """Judge the cost of checkpointing: FLOPs and messages compared with no checkpointing. It must be sharded, too."""
    replies, expected = _account(s, check, 2), _expected(s.tier.name, 2)
    plain = s.order_reference("record_step", tier=s.tier.name, seed=s.seed, depth=2)[0]
    again, kept, bar = _again_and_kept(replies, plain, s.tier.name)
    figures = {
        "computed again, in forwards of all blocks": (f"{min(again):.2f} to {max(again):.2f}", f"{LEAST_AGAIN:g} to 1"),
        "most activations at once": (mib(kept), mib(bar)),
    }

    def not_sharded(replies: list[dict], *which) -> str:
        wrong = _not_by_unit(replies, *which)
        return f"it is not sharded as in part 2: {wrong}" if wrong else ""

    def wrong_in_other(others: list[dict], tier: str, depth: int, other: bool) -> str:
        wrong = _not_again(*_again_and_kept(others, plain["other"], tier, other))
        return wrong or not_sharded(others, tier, depth, other)

    states = _in_words(_worst(replies, expected, STATES)[0], STATES)
    wrong = (
        _not_again(again, kept, bar)
        or (f"it is not sharded as in part 2: {states}" if states else "")
        or not_sharded(replies, s.tier.name, 2)
        or _not_torchs(replies)
        or _of_other(wrong_in_other, s, replies, 2)
    )
    cause = "activations are dropped, and cost at most one more forward of the blocks, and no message."
    return Verdict(check, 0 if wrong else points, points, wrong or cause, "", figures)


def _again_and_kept(
    replies: list[dict], plain: dict, tier: str, other: bool = False
) -> tuple[list[float], float, float]:
    """Return the forwards of all blocks that each rank computes again, the most activations, and how many may be."""
    forward = _forward_of_blocks(tier, plain["flops"], other)
    again = [(r["flops"] - plain["flops"]) / forward for r in replies]
    kept = max(_evidence(r).peak["activations"] for r in replies)
    return again, kept, (1 - LEAST_DROPPED) * _evidence(plain).peak["activations"]


def _not_again(again: list[float], kept: float, bar: float) -> str:
    if kept > bar:
        return f"{mib(kept)} of activations are held at once on some rank, where at most {mib(bar)} are allowed."
    if max(again) > 1 + ROUNDING:
        return f"{max(again):.2f} forwards of all blocks are computed again: something is recomputed twice."
    if min(again) < LEAST_AGAIN:
        return f"{min(again):.2f} forwards of all blocks are computed again, and {LEAST_AGAIN:g} is the least."
    return ""


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
    name = next(iter(found), None)
    return "" if name is None else f"{meanings[name]}: {found[name]}."


def _evidence(reply: dict) -> Evidence:
    e = reply["evidence"]
    return Evidence(**e | {name: tuple(Sent(**s) for s in e[name]) for name in ("sent", "sent_in_no_sync")})


def _messages(e: Evidence) -> list[Message]:
    return [Message(m.kind, m.group_size, m.elements) for m in e.sent]


@cache
def _expected(tier: str, depth: int, other: bool = False) -> Expected:
    """Return what is due of the tier's model, `depth` times as deep, or of the `other` one that goes with it."""
    with torch.device("meta"):
        model = Transformer(_config(tier, depth, other))
    return Expected("FULL_SHARD", units_of(model, model.blocks), TIERS[tier].world_size)


def _config(tier: str, depth: int, other: bool) -> ModelConfig:
    config = on_ranks.config_of(TIERS[tier], depth)
    return on_ranks.other_config(config) if other else config


def units_due(tier: str, depth: int, other: bool = False) -> Units:
    return Units.of(_expected(tier, depth, other).units, TIERS[tier].world_size)


def _forward_of_blocks(tier: str, step_flops: int, other: bool = False) -> float:
    """Return the FLOPs of the blocks' forward: a third of the step's (backward takes two), less the output layer's."""
    t, config = TIERS[tier], _config(tier, 1, other)
    return step_flops / 3 - 2 * t.micro_batch * t.seq_len * config.dim * config.vocab_size
