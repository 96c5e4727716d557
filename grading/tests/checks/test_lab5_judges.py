"""Lab 5's judges alone, on what ranks might reply."""

import json
import random
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from submissions import judge_replies
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from grading.checks.lab5_precision_recompute import (
    judge_matches_fp32,
    judge_plan,
    judge_recompute_savings,
    judge_recomputed_gradients,
    on_ranks,
    plan_costs,
)
from grading.checks.lab5_precision_recompute.drawn_model_and_batches import build, shape_of
from grading.checks.lab5_precision_recompute.gradient_projections import places_of, shares_of_weights
from grading.references.lab5_precision_recompute import best_plan as ours
from shardlab import launch
from shardlab.tier import TIERS

RIGHT_GRADIENTS = {"up": [3.0, 4.0], "forget.log_rate": [0.6, 0.8]}


def run_of(
    held=1000,
    losses=None,
    logits=1.0,
    dtypes=("float32",),
    gathered=0.5,
    wide=0.0,
    reduced=1.0,
    rounded=0.0,
    bad_step=None,
    gradients=None,
    held_dtypes=None,
    **other,
):
    """What a rank replies of its training, beside a reference that sends 1000 bytes each way in a step."""

    def sent(kind: str, dtype: str, share: float, number: bool = False) -> dict:
        return {"kind": kind, "dtype": dtype, "number": number, "bytes": 1000 * share}

    def step(gathered, wide, reduced, rounded) -> list[dict]:
        messages = [sent("all_gather", "BFloat16", gathered - wide), sent("all_gather", "Float", wide)]
        messages += [sent("reduce_scatter", "Float", reduced - rounded), sent("all_reduce", "Double", 1e-4, True)]
        return messages + ([sent("reduce_scatter", "BFloat16", rounded)] if rounded else [])

    bad, right = step(gathered, wide, reduced, rounded), step(0.5, 0.0, 1.0, 0.0)
    usual = {
        "weights": {"norm.weight": [0.25, 0.25], "rate": [-0.5, -0.5]},
        "losses": losses or [5.0 - i / 10 for i in range(judge_matches_fp32.STEPS)],
        "logits": [logits * (i - 7.5) for i in range(on_ranks.N_TOKENS)],
        "logits_dtypes": list(dtypes),
        "gradients": RIGHT_GRADIENTS if gradients is None else gradients,
        "dtypes": held_dtypes or {"parameters": ["float32"], "optimizer": ["float32"]},
        "shard_bytes": 100,
        "whole": {"forget": [1.0, 2.0]},
        "held": {"parameters": 100, "other": held - 100},
        "sent": [bad if bad_step in (None, i) else right for i in range(judge_matches_fp32.STEPS)],
    }
    return usual | other


def judged_run(check: str, rank: int = 3, **mine):
    of_ranks = [run_of(**mine) if r == rank else run_of() for r in range(4)]
    return judge_replies(check, {"precision": of_ranks}, {"precision": [run_of(gathered=1.0, wide=1.0)] * 4})


def falls_short(said: dict) -> dict:
    return {words: v.cause for words, v in said.items() if v.points or words not in v.cause}


def test_a_rank_holds_its_share_in_fp32_and_nothing_else():
    assert judged_run("lab5.held", held=1049).points == judged_run("lab5.held", held=981).points == 2
    in_bf16 = {"parameters": ["bfloat16"], "optimizer": ["float32"]}
    moments_in_bf16 = {"parameters": ["float32"], "optimizer": ["bfloat16", "float32"]}
    said = {
        "bytes more stay from step to step": judged_run("lab5.held", held=1051),
        "less than its share": judged_run("lab5.held", held=979),
        "there is no fp32 master": judged_run("lab5.held", held_dtypes=in_bf16),
        "AdamW's states are in bfloat16": judged_run("lab5.held", held_dtypes=moments_in_bf16),
        "they are not sharded": judged_run("lab5.held", held=1200, shard_bytes=400),
    }
    assert falls_short(said) == {}


@pytest.mark.parametrize("step", [None, 0, judge_matches_fp32.STEPS - 1])
def test_parameters_travel_in_bf16_and_gradients_in_fp32_in_each_step(step):
    ask = partial(judged_run, "lab5.wire", bad_step=step)
    assert ask(gathered=0.549, wide=0.099, reduced=1.049).points == 2
    assert ask(gathered=0.25, reduced=0.981).points == 2
    said = {
        "0.56 times fp32's bytes are sent": ask(gathered=0.56),
        "0.53 times fp32's bytes are sent in Float": ask(gathered=0.53, wide=0.53),
        "0.11 times fp32's bytes are sent in Float": ask(wide=0.11),
        "Autocast casts": ask(gathered=1.0, wide=1.0),
        "some are reduced twice": ask(reduced=1.06),
        "some are not reduced": ask(reduced=0.97),
        "gradients are reduced in BFloat16": ask(rounded=0.0001),
        "forget is another on each rank": ask(whole={"forget": [1.0, 2.001]}),
        "forget.log_rate gets no gradient": ask(gradients={"up": [3.0, 4.0]}),
    }
    assert falls_short(said) == {}


def test_the_weights_that_are_trained_are_those_that_were_given():
    given = {"norm.weight": [0.25, 0.25], "rate": [-0.5, -0.5 + 0.9e-5]}
    assert judged_run("lab5.curve", weights=given).points == 3
    verdict = judged_run("lab5.curve", weights=given | {"rate": [-0.5, -0.5 + 1.1e-5]})
    assert (verdict.points, "`shard` changed rate" in verdict.cause) == (0, True)


def test_rounding_shows_in_the_shares_that_ranks_have_of_a_weight():
    def shares() -> tuple:
        model = build(1, shape_of(1, "cpu"))
        places = places_of(model)
        given = shares_of_weights(places)
        model.blocks[2].memory.forget.bfloat16().float()
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
        return given, shares_of_weights(places)

    ranks = launch(shares, 4, device="cpu")
    off = {name: abs(sum(b[name] - a[name] for a, b in ranks)) for name in ranks[0][0]}
    assert off.pop("blocks.2.memory.forget.log_rate") > 1e-3
    assert max(off.values()) < 1e-6


def test_only_what_was_seen_is_said_of_messages():
    assert "Autocast" not in judged_run("lab5.wire", gathered=0.53, wide=0.53).cause


def test_logits_gradients_and_losses_are_those_of_fp32(monkeypatch):
    explains_nothing = torch.zeros(on_ranks.N_TOKENS)
    monkeypatch.setattr(judge_matches_fp32, "_rounded", lambda s, rank, positions, rates: explains_nothing)

    def off(by: float, step: int = 9) -> list[float]:
        losses = run_of()["losses"]
        losses[step] += 4 * by  # the mean over four ranks
        return losses

    def gradients(up: float, rates: float, side: float = 0.0) -> dict:
        return {"up": [3.0 * up - 4 * side, 4.0 * up + 3 * side], "forget.log_rate": [0.6 * rates, 0.8 * rates]}

    ask = partial(judged_run, "lab5.curve")
    assert ask(logits=1.019, losses=off(0.0099), gradients=gradients(1.039, 1.29)).points == 3
    said = {
        "the first logits are off by 2.1%": ask(logits=1.021),
        "neither rounded positions nor rates explain it": ask(logits=1.06),
        "are right up to step 9, and that of step 10 is off": ask(losses=off(-0.0101)),
        "the loss of step 1 is off": ask(losses=off(0.0101, 0)),
        "come out in bfloat16, float32": ask(rank=2, dtypes=["float32", "bfloat16"]),
        "the loss of step 1 is not finite": ask(losses=[float("nan")] * 10),
        "rank 3 are not all finite": ask(logits=float("nan")),
        "the gradient of up is 4 times the mean": ask(rank=0, gradients=gradients(4.0, 4.0)),
        "log_rate is 1.31 times the mean": ask(rank=1, gradients=gradients(1.0, 1.31)),
        "the gradient of up is off by 5% on rank 2": ask(rank=2, gradients=gradients(1.0, 1.0, side=0.05)),
    }
    assert falls_short(said) == {}


def judged_both(peak=0, again=1.0, rank=2, name="narrow", **spoilt):
    """At one of the budgets: bytes beyond it, FLOPs in times of the fewest, and what is spoilt of `run_of`."""
    blocks = [judge_plan._block(random.Random(i)) for i in range(4)]
    losses = [5.0, 4.0, 3.0, 2.0]

    def reply(bad: bool, budget: str) -> dict:
        allowed, activations = on_ranks.BUDGETS["cpu"][budget]
        extra = ours.fewest(blocks, activations)["flops"]
        n_bytes = allowed + (peak if bad else -1)
        return run_of(**({"losses": losses} | (spoilt if bad else {}))) | {
            "peak_bytes": n_bytes,
            "peak": {"activations": n_bytes},
            "where": "backward",
            "flops": 10**12 + int(extra * (again if bad else 1.0)),
            "blocks": blocks,
        }

    def mine(budget, **_):
        return [reply(r == rank and budget == name, budget) for r in range(4)]

    def due(**_):
        return [reply(False, "wide") | run_of(gathered=1.0, wide=1.0, losses=losses) | {"flops": 10**12}] * 4

    return judge_replies("lab5.budget", {"both": mine}, {"both": due})


@pytest.mark.parametrize("name", ["wide", "narrow"])
def test_a_budget_is_met_at_the_fewest_flops(monkeypatch, name):
    monkeypatch.setattr(
        on_ranks, "BUDGETS", {"cpu": {"wide": (5_000_000, 8_000_000), "narrow": (3_000_000, 5_000_000)}}
    )
    ask = partial(judged_both, name=name)

    def losses(off: float) -> list[float]:
        return [5.0 + 4 * off, 4.0, 3.0, 2.0]

    assert ask().points == ask(losses=losses(0.0099), again=1.049).points == 4
    assert ask(again=1.06).points == ask(again=1.49).points == 3
    assert ask(again=1.51).points == 2
    said = {
        f"with the {name} budget, the peak is 1.00 times": ask(peak=1),
        "the loss of step 1 is off by 0.0101": ask(losses=losses(0.0101)),
        "the logits come out in bfloat16": ask(dtypes=["bfloat16"]),
        "parameters are held in bfloat16": ask(held_dtypes={"parameters": ["bfloat16"], "optimizer": ["float32"]}),
        "bytes more stay from step to step": ask(held=1060),
        "sent in Float, not in bf16": ask(gathered=0.53, wide=0.53),
        "reduced in BFloat16": ask(rounded=0.01),
        "log_rate gets no gradient": ask(gradients={"up": [3.0, 4.0]}),
        "is 2 times the mean": ask(gradients={name: [2 * x for x in xs] for name, xs in RIGHT_GRADIENTS.items()}),
    }
    assert falls_short(said) == {}


def test_too_few_flops_on_one_rank_are_too_few(monkeypatch):
    monkeypatch.setattr(
        on_ranks, "BUDGETS", {"cpu": {"wide": (5_000_000, 8_000_000), "narrow": (3_000_000, 3_000_000)}}
    )
    blocks = [judge_plan._block(random.Random(i)) for i in range(4)]
    budget = plan_costs.peak_of(["full"] * 4, blocks)  # so that a block must be recomputed in full
    monkeypatch.setitem(on_ranks.BUDGETS["cpu"], "narrow", (budget, budget))
    assert judged_both().points == judged_both(again=0.51).points == 4
    assert "is to be computed again" in judged_both(again=0.49).cause


@pytest.fixture(scope="module")
def recomputed():
    """The replies for each plan of a right answer, by dropout, and of the model that keeps all."""
    session = SimpleNamespace(seed=1, tier=TIERS["cpu"])
    plans, dropouts = judge_recomputed_gradients.plans(session), (on_ranks.DROPOUT, 0.0)
    mine = {d: on_ranks.recompute(recompute, 1, "cpu", plans, d) for d in dropouts}
    return mine, {d: on_ranks.plain(None, 1, "cpu", d) for d in dropouts}


def recompute(model, plan):
    def save_products(ctx, op, *args, **kwargs):
        kept = op is torch.ops.aten.mm.default
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    contexts = {"full": {}, "selective": {"context_fn": lambda: create_selective_checkpoint_contexts(save_products)}}
    for block, way in zip(model.blocks, plan, strict=True):
        if way != "keep":
            block.forward = partial(checkpoint, block.forward, use_reentrant=False, **contexts[way])
    return model


def judged_recompute(
    check: str, recomputed: tuple, place: int = 1, of_dropout=(on_ranks.DROPOUT,), change=lambda reply: None
):
    """With the reply for one plan changed, where there is that dropout."""
    right, plain = recomputed
    spoilt = json.loads(json.dumps({str(d): replies for d, replies in right.items()}))
    for dropout in of_dropout:
        change(spoilt[str(dropout)][place])

    def mine(dropout, **_):
        return [spoilt[str(dropout)]]

    def due(dropout, **_):
        return [plain[dropout]]

    return judge_replies(check, {"recompute": mine}, {"plain": due})


@pytest.mark.night
def test_gradients_are_those_without_recomputation_at_every_plan_and_step(recomputed):
    def times(factor: float, *steps: int, of: str = "", generator: str | None = None):
        def change(reply):
            for step in steps:
                found = reply["gradients"][step]
                changed = {name: [factor * x for x in xs] for name, xs in found.items() if of in name}
                reply["gradients"][step] = found | changed
            reply["generator"][0] = generator or reply["generator"][0]

        return change

    def without_rates(reply):
        for step in reply["gradients"]:
            del step["blocks.2.memory.forget.log_rate"]

    both, rates = (on_ranks.DROPOUT, 0.0), "blocks.2.memory.forget.log_rate"
    for place in (1, 3):
        ask = partial(judged_recompute, "lab5.gradients", recomputed, place)
        assert ask().points == ask(change=times(1.00009, 0, 1)).points == 2
        said = {
            "the random generator stands elsewhere": ask(change=times(1.0002, 1, generator="elsewhere")),
            "the first step is right; in the second": ask(change=times(1.0002, 1)),
            "draws other masks than the first": ask(change=times(1.0002, 0)),
            f"{rates} is wrong even without dropout": ask(of_dropout=both, change=times(1.0002, 0, of=rates)),
            f"{rates} gets no gradient": ask(change=without_rates),
        }
        assert falls_short(said) == {}


@pytest.mark.night
def test_what_a_plan_takes_follows_from_the_plain_step(recomputed):
    """To the byte and FLOP, but for what a recomputed block holds beside its plain bytes at the peak: 1 %."""
    session = SimpleNamespace(seed=1, tier=TIERS["cpu"])
    for plan_, found in zip(judge_recomputed_gradients.plans(session), recomputed[0][on_ranks.DROPOUT], strict=True):
        due = judge_recompute_savings.due(plan_, recomputed[1][on_ranks.DROPOUT])
        assert (due["flops"], due["waiting_bytes"]) == (found["flops"], found["waiting_bytes"])
        assert due["peak_bytes"] == pytest.approx(found["peak_bytes"], rel=0.01)


@pytest.mark.parametrize("seed", range(20))
def test_the_mixed_plan_is_another_from_its_end(seed):
    session = SimpleNamespace(seed=seed, tier=TIERS["cpu"])
    mixed = judge_recomputed_gradients.plans(session)[-1]
    widths = on_ranks.shape_of(seed, "cpu")["hidden"]
    in_full = [sum(w for w, way in zip(widths, p, strict=True) if way == "full") for p in (mixed, mixed[::-1])]
    assert abs(in_full[0] - in_full[1]) > judge_recomputed_gradients.IN_ANOTHER_ORDER * in_full[0]


@pytest.mark.night
def test_each_way_saves_and_costs_what_the_price_list_says(recomputed):
    plain, _, full, _ = (reply["flops"] for reply in recomputed[0][on_ranks.DROPOUT])

    def times(key: str, factor: float):
        return lambda reply: reply.update({key: int(factor * reply[key])})

    def again(factor: float):
        flops = plain + int(factor * (full - plain))
        return lambda reply: reply.update(flops=flops, fewest_flops=flops)

    def in_one_step(factor: float):
        return lambda reply: reply.update(fewest_flops=plain + int(factor * (full - plain)))

    ask = partial(judged_recompute, "lab5.price", recomputed, 2)
    for right in (again(1.019), again(0.51), times("waiting_bytes", 1.049), times("peak_bytes", 1.049)):
        assert ask(change=right).points == 2
    said = {
        "FLOPs again, where": ask(change=again(1.03)),
        "is to be computed again": ask(change=again(0.49)),
        "computes only": ask(change=in_one_step(0.49)),
        "it saves more than the plan says": ask(change=times("waiting_bytes", 1.06)),
        "peaks at 1.06 times": ask(change=times("peak_bytes", 1.06)),
        '"keep" computes': judged_recompute("lab5.price", recomputed, 0, change=again(0.5)),
    }
    assert falls_short(said) == {}
