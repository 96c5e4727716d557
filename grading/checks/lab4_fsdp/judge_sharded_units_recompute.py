"""Judge what a step holds, sends and computes: three checks of the same record, taken on the ranks. See unit_messages.

The expected values come from shardplan.formulas, and the cause of a failure from shardplan.compare_formulas.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import cache

import torch

from grading.checks.lab4_fsdp import on_ranks, unit_messages
from grading.checks.lab4_fsdp.refused_finished_code import in_words
from grading.checks.lab4_fsdp.unit_messages import SPARE_MESSAGES, Message, Units, gathers, root_again
from grading.judge.session import Session
from grading.judge.verdict import Verdict
from shardlab.model import Transformer
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
    wrong = _in_words(found, STATES) or _not_torchs(replies)
    cause = f"each rank keeps a {s.tier.world_size}th of parameters, gradients and optimizer states, and nothing else."
    return Verdict(check, 0 if wrong else points, points, wrong or cause, "", figures)


def _not_torchs(replies: list[dict]) -> str:
    if not all(r["torchs"] for r in replies):
        return "no module is a unit of torch's FSDP: this lab is about torch's own engine."
    return in_words(replies)


def judge_units(s: Session, check: str, points: float) -> Verdict:
    """Judge how much is whole at once, and in how many messages it is gathered and reduced."""
    replies, units = _account(s, check, 1), units_due(s.tier.name, 1)
    wrong, e = _not_by_unit(replies, s.tier.name, 1)
    due = {"all_gather": 2 * units.n_blocks + 1, "reduce_scatter": units.n_blocks + 1}
    sent = _messages(e)
    figures = {
        f"{kind}s in a step": (f"{len(gathers(sent, kind))}", f"{n + SPARE_MESSAGES}") for kind, n in due.items()
    }
    figures["whole parameters and gradients at once"] = (
        mib(e.peak["unsharded"]),
        mib(_expected(s.tier.name, 1).unsharded_peak),
    )
    cause = "one block is whole at a time, or two; each is gathered for forward and for backward, and freed."
    return Verdict(check, 0 if wrong else points, points, wrong or cause, "", figures)


def _not_by_unit(replies: list[dict], tier: str, depth: int) -> tuple[str, Evidence]:
    """Return in words what the first rank that has not one unit a block does, and its evidence; else an empty text."""
    units, most = (
        units_due(tier, depth),
        4 * (units_due(tier, depth).root + BLOCKS_IN_FORWARD * units_due(tier, depth).block),
    )
    for reply in replies:
        e = _evidence(reply)
        sent, expected = _messages(e), _expected(tier, depth)
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
    forward = _forward_of_blocks(s.tier.name, plain["flops"])
    again = [(r["flops"] - plain["flops"]) / forward for r in replies]
    least, most = min(again), max(again)
    kept = max(_evidence(r).peak["activations"] for r in replies)
    bar = (1 - LEAST_DROPPED) * _evidence(plain).peak["activations"]
    figures = {
        "computed again, in forwards of all blocks": (f"{least:.2f} to {most:.2f}", f"{LEAST_AGAIN:g} to 1"),
        "most activations at once": (mib(kept), mib(bar)),
    }
    if kept > bar:
        cause = f"{mib(kept)} of activations are held at once on some rank, where at most {mib(bar)} are allowed."
    elif most > 1 + ROUNDING:
        cause = f"{most:.2f} forwards of all blocks are computed again: something is recomputed twice."
    elif least < LEAST_AGAIN:
        cause = f"{least:.2f} forwards of all blocks are computed again, and {LEAST_AGAIN:g} is the least."
    elif wrong := _in_words(_worst(replies, expected, STATES)[0], STATES) or _not_by_unit(replies, s.tier.name, 2)[0]:
        cause = f"it is not sharded as in part 2: {wrong}"
    elif wrong := _not_torchs(replies):
        cause = wrong
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
    name = next(iter(found), None)
    return "" if name is None else f"{meanings[name]}: {found[name]}."


def _evidence(reply: dict) -> Evidence:
    e = reply["evidence"]
    return Evidence(**e | {name: tuple(Sent(**s) for s in e[name]) for name in ("sent", "sent_in_no_sync")})


def _messages(e: Evidence) -> list[Message]:
    return [Message(m.kind, m.group_size, m.elements) for m in e.sent]


@cache
def _expected(tier: str, depth: int) -> Expected:
    with torch.device("meta"):
        model = Transformer(on_ranks.config_of(TIERS[tier], depth))
    return Expected("FULL_SHARD", units_of(model, model.blocks), TIERS[tier].world_size)


def units_due(tier: str, depth: int) -> Units:
    return Units.of(_expected(tier, depth).units, TIERS[tier].world_size)


def _forward_of_blocks(tier: str, step_flops: int) -> float:
    """Return the FLOPs of the blocks' forward: a third of the step's (backward takes two), less the output layer's."""
    t = TIERS[tier]
    return step_flops / 3 - 2 * t.micro_batch * t.seq_len * t.model.dim * t.model.vocab_size
