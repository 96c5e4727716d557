"""Lab 5's class before the referee, the model that its notebook shows beside the judge's, and the best plans."""

import inspect
import json
import random
from functools import partial
from itertools import product
from types import SimpleNamespace

import pytest
import torch
from submissions import checks_that_nothing_needs, class_of, concerned, judge_replies, surprises_of, try_sample

from grading.checks.lab5_precision_recompute import (
    gradients,
    judge_losses,
    model_and_block_costs,
    on_ranks,
    plan,
    reference_answers,
)
from grading.samples import read_lab, samples
from shardlab.tier import TIERS

ONE_RANK = ("lab5.plan",)  # checks whose drills need no other
LAB = "lab5_precision_recompute"


@pytest.mark.parametrize("sample", class_of(LAB))
def test_sample_gets_its_points_and_its_cause(sample, answers, referees):
    try_sample(sample, answers(sample), referees(LAB))


@pytest.mark.parametrize("sample", concerned(LAB, ONE_RANK))
def test_sample_gets_its_points_where_one_rank_is_asked(sample, answers, unboxed):
    assert surprises_of(sample, answers(sample), unboxed(LAB), ONE_RANK) == []


def test_every_check_stops_a_sample_that_no_other_check_stops():
    assert checks_that_nothing_needs(LAB) == set()


@pytest.mark.parametrize("folder", ["solutions", "labs"])
def test_the_notebook_shows_the_judges_own_model(folder):
    judges = inspect.getsource(model_and_block_costs)
    shown = {c.metadata.nbgrader.grade_id: c.source for c in read_lab(folder, LAB).cells}
    for cell in ("memory", "reader", "price_list"):
        assert shown[cell].strip() in judges


@pytest.mark.parametrize("seed", range(6))
def test_no_plan_that_fits_is_cheaper_than_the_judges_best(seed):
    blocks, budget = plan._case(random.Random(seed), 6)
    every = [list(ways) for ways in product(reference_answers.WAYS, repeat=6)]
    fitting = [p for p in every if reference_answers.peak_of(p, blocks) <= budget]
    best = reference_answers.best_plan(blocks, budget)
    assert reference_answers.peak_of(best, blocks) <= budget
    assert reference_answers.flops_of(best, blocks) == min(reference_answers.flops_of(p, blocks) for p in fitting)


def test_the_hopeless_case_is_one():
    blocks, budget = plan._hopeless(random.Random(3))
    assert reference_answers.best_plan(blocks, budget) is None
    assert all(block["keep"][0] <= budget for block in blocks)
    assert reference_answers.peak_of(["full"] * len(blocks), blocks) > budget


@pytest.mark.parametrize("answer", [["keep"], ["all"] * 6, 7, {"keep": 6}])
def test_what_is_no_plan_is_told_so(answer):
    blocks, budget = plan._case(random.Random(1), 6)
    assert "one of keep, selective, full" in plan._does_not_fit(blocks, budget, answer)


def test_none_where_a_plan_fits_is_told_so():
    blocks, budget = plan._case(random.Random(1), 6)
    assert "yours is None" in plan._does_not_fit(blocks, budget, None)


# The judges alone, on what ranks might reply


def run_of(held=1000, losses=None, logits=1.0, dtype="float32", gathered=0.5, reduced=1.0, rounded=0.0, **other):
    """What a rank replies of its training, beside a reference that sends 1000 bytes each way."""
    sent = [{"kind": "all_gather", "dtype": "BFloat16", "bytes": 1000 * gathered}]
    sent += [{"kind": "reduce_scatter", "dtype": "Float", "bytes": 1000 * (reduced - rounded)}]
    sent += [{"kind": "reduce_scatter", "dtype": "BFloat16", "bytes": 1000 * rounded}] if rounded else []
    usual = {
        "losses": losses or [5.0 - i / 10 for i in range(judge_losses.STEPS)],
        "logits": [logits * (i - 7.5) for i in range(on_ranks.N_TOKENS)],
        "logits_dtype": dtype,
        "dtypes": {"parameters": ["float32"], "optimizer": ["float32"]},
        "shard_bytes": 100,
        "whole": {"forget": [1.0, 2.0]},
        "held": {"parameters": 100, "other": held - 100},
        "sent": sent,
    }
    return usual | other


def judged_run(check: str, rank: int = 3, **mine):
    of_ranks = [run_of(**mine) if r == rank else run_of() for r in range(4)]
    return judge_replies(check, {"precision": of_ranks}, {"precision": [run_of(gathered=1.0)] * 4})


def falls_short(said: dict) -> dict:
    return {words: v.cause for words, v in said.items() if v.points or words not in v.cause}


def test_a_rank_holds_its_share_in_fp32_and_nothing_else():
    assert judged_run("lab5.held", held=1149).points == 2
    said = {
        "bytes more stay from step to step": judged_run("lab5.held", held=1151),
        "there is no fp32 master": judged_run(
            "lab5.held", dtypes={"parameters": ["bfloat16"], "optimizer": ["float32"]}
        ),
        "AdamW's states are in bfloat16": judged_run(
            "lab5.held", dtypes={"parameters": ["float32"], "optimizer": ["bfloat16", "float32"]}
        ),
        "they are not sharded": judged_run("lab5.held", held=1200, shard_bytes=400),
    }
    assert falls_short(said) == {}


def test_parameters_travel_in_16_bits_and_gradients_in_32():
    assert judged_run("lab5.wire", gathered=0.549, reduced=1.049).points == 2
    assert judged_run("lab5.wire", reduced=0.981).points == 2
    said = {
        "some parameters are gathered in fp32 that need not be": judged_run("lab5.wire", gathered=0.56),
        "parameters are gathered in fp32.": judged_run("lab5.wire", gathered=1.0),
        "something is reduced twice": judged_run("lab5.wire", reduced=1.06),
        "some are never reduced": judged_run("lab5.wire", reduced=0.97),
        "gradients are reduced in 16 bits": judged_run("lab5.wire", rounded=0.01),
        "forget is another on each rank": judged_run("lab5.wire", whole={"forget": [1.0, 2.001]}),
    }
    assert falls_short(said) == {}


def test_logits_and_losses_are_those_of_fp32(monkeypatch):
    monkeypatch.setattr(judge_losses, "_rounded", lambda s, positions, rates: torch.tensor([0.0]))  # explains nothing

    def off(by: float, step: int = 9) -> list[float]:
        losses = run_of()["losses"]
        losses[step] += 4 * by  # the mean over four ranks
        return losses

    assert judged_run("lab5.curve", logits=1.019, losses=off(0.0099)).points == 3
    said = {
        "further off than one rounding": judged_run("lab5.curve", logits=1.021),
        "is this still the same model": judged_run("lab5.curve", logits=1.06),
        "the losses drift away": judged_run("lab5.curve", losses=off(-0.0101)),
        "come out in bfloat16": judged_run("lab5.curve", rank=0, dtype="bfloat16"),
        "not finite": judged_run("lab5.curve", losses=[float("nan")] * 10),
    }
    assert falls_short(said) == {}


def judged_both(peak=0, losses=0.0, dtypes=("float32",), again=1.0, rank=2, name="narrow"):
    """At one of the budgets: bytes beyond it, a loss that is off, and FLOPs in times of the fewest."""
    blocks = [plan._block(random.Random(i)) for i in range(4)]

    def reply(spoilt: bool, budget: str) -> dict:
        allowed, activations = on_ranks.BUDGETS["cpu"][budget]
        extra = reference_answers.flops_of(reference_answers.best_plan(blocks, activations), blocks)
        return {
            "losses": [5.0 + (4 * losses if spoilt else 0.0), 4.0, 3.0, 2.0],
            "dtypes": list(dtypes) if spoilt else ["float32"],
            "peak_bytes": allowed + (peak if spoilt else -1),
            "where": "backward",
            "flops": 10**12 + int(extra * (again if spoilt else 1.0)),
            "blocks": blocks,
        }

    def mine(budget, **_):
        return [reply(r == rank and budget == name, budget) for r in range(4)]

    def due(**_):
        return [reply(False, "wide") | {"flops": 10**12}] * 4

    return judge_replies("lab5.budget", {"both": mine}, {"both": due})


def test_a_budget_is_met_at_the_fewest_flops(monkeypatch):
    monkeypatch.setattr(
        on_ranks, "BUDGETS", {"cpu": {"wide": (5_000_000, 8_000_000), "narrow": (3_000_000, 5_000_000)}}
    )
    for name in ("wide", "narrow"):
        assert judged_both(name=name).points == judged_both(losses=0.0049, again=1.049, name=name).points == 4
        assert judged_both(again=1.06, name=name).points == judged_both(again=1.49, name=name).points == 3
        assert judged_both(again=1.51, name=name).points == 2
        said = {
            f"times the {name} budget at the peak": judged_both(peak=1, name=name),
            f"with the {name} budget the losses are not fp32's": judged_both(losses=0.0051, name=name),
            "parameters or logits are in bfloat16": judged_both(dtypes=["bfloat16"], name=name),
        }
        assert falls_short(said) == {}


@pytest.fixture(scope="module")
def recomputed():
    """The reference's replies for each plan, by dropout."""
    session = SimpleNamespace(seed=1, tier=TIERS["cpu"])
    plans = gradients.plans(session)
    return {d: on_ranks.recompute(reference_answers.recompute, 1, "cpu", plans, d) for d in (on_ranks.DROPOUT, 0.0)}


def judged_recompute(
    check: str, recomputed: dict, place: int = 1, of_dropout=(on_ranks.DROPOUT,), change=lambda reply: None
):
    """With the reply for one plan changed, where there is that dropout."""
    spoilt = json.loads(json.dumps({str(d): replies for d, replies in recomputed.items()}))
    for dropout in of_dropout:
        change(spoilt[str(dropout)][place])

    def mine(dropout, **_):
        return [spoilt[str(dropout)]]

    def due(dropout, **_):
        return [recomputed[dropout]]

    return judge_replies(check, {"recompute": mine}, {"recompute": due})


def test_gradients_are_those_without_recomputation_at_every_plan_and_step(recomputed):
    def times(factor: float, *steps: int):
        def change(reply):
            for step in steps:
                found = reply["gradients"][step]
                reply["gradients"][step] = {name: [factor * x for x in xs] for name, xs in found.items()}

        return change

    for place in (1, 3):
        ask = partial(judged_recompute, "lab5.gradients", recomputed, place)
        assert ask().points == ask(change=times(1.00009, 0, 1)).points == 2
        said = {
            "the first step is right, the second is not": ask(change=times(1.0002, 1)),
            "draws other masks than the first": ask(change=times(1.0002, 0)),
            "wrong even without dropout": ask(of_dropout=(on_ranks.DROPOUT, 0.0), change=times(1.0002, 0)),
        }
        assert falls_short(said) == {}


def test_each_way_saves_and_costs_what_the_price_list_says(recomputed):
    plain, _, full, _ = (reply["flops"] for reply in recomputed[on_ranks.DROPOUT])

    def times(key: str, factor: float):
        return lambda reply: reply.update({key: int(factor * reply[key])})

    def again(factor: float):
        return lambda reply: reply.update(flops=plain + int(factor * (full - plain)))

    ask = partial(judged_recompute, "lab5.price", recomputed, 2)
    for right in (again(1.019), again(0.51), times("waiting_bytes", 1.049), times("peak_bytes", 1.049)):
        assert ask(change=right).points == 2
    said = {
        "computes products again": ask(change=again(1.03)),
        "what backward needs was put where it is": ask(change=again(0.49)),
        "it saves more than the plan says": ask(change=times("waiting_bytes", 1.06)),
        "what comes back stays": ask(change=times("peak_bytes", 1.06)),
        "should keep all is recomputed": judged_recompute("lab5.price", recomputed, 0, change=again(0.5)),
    }
    assert falls_short(said) == {}


@pytest.mark.night
def test_the_solution_sends_what_it_should_on_ranks(answers, unboxed, monkeypatch):
    monkeypatch.setattr(judge_losses, "STEPS", 2)
    right = next(s for s in samples(LAB) if s.name == "right")
    assert unboxed(LAB).judge(answers(right), only="lab5.wire")[0].passed
