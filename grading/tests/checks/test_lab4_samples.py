"""Lab 4's class before the referee; its budgets beside the planner's and beside real ranks."""

import ast
from dataclasses import replace

import pytest
import torch
from deadlines import deadline_s
from submissions import checks_that_nothing_needs, class_of, concerned, surprises_of, try_sample

from grading.checks.lab4_fsdp import judge_peak_and_losses, judge_sharded_units_recompute, judge_speed, on_ranks
from grading.samples.sample import read_lab, samples
from shardlab import launch
from shardlab.model import Transformer, preset
from shardlab.tier import TIERS
from shardplan.api import setup_of
from shardplan.formulas import Expected, units_of
from shardplan.memory import memory_plan
from shardplan.shape import Shape

ONE_RANK = ("lab4.price", "lab4.efficiency")  # checks whose drills need no other
LAB = "lab4_fsdp"
MIB = 2**20
SHARE_OF_DDP = 2 / 3


@pytest.mark.parametrize("sample", class_of(LAB))
def test_sample_gets_its_points_and_its_cause(sample, answers, referees):
    try_sample(sample, answers(sample), referees(LAB))


@pytest.mark.parametrize("sample", concerned(LAB, ONE_RANK))
def test_sample_gets_its_points_where_one_rank_is_asked(sample, answers, unboxed):
    assert surprises_of(sample, answers(sample), unboxed(LAB), ONE_RANK) == []


def test_every_check_stops_a_sample_that_no_other_check_stops():
    assert checks_that_nothing_needs(LAB) == set()


def planned_mib(tier, depth=1, **strategy):
    sizes = {
        "micro_batch": tier.micro_batch,
        "seq_len": tier.seq_len,
        "precision": "fp32",
        "optimizer_kernel": "forloop",
    }
    shape = Shape.of("lab 4", replace(tier.model, n_layers=depth * tier.model.n_layers))
    planned = setup_of(shape, "dgx-h100", tier.world_size, **sizes, **strategy)
    return memory_plan(planned, on_gpu=False).peak.n_bytes / MIB


@pytest.mark.parametrize("name", ["cpu", "cpu8"])
def test_a_budget_is_two_thirds_of_ddp_on_every_cpu_tier(name):
    """Those of the GPU tiers are in lib/tests/plan/test_plan_tiers.py."""
    tier, budget = TIERS[name], on_ranks.BUDGETS[name]
    assert budget == pytest.approx(SHARE_OF_DDP * planned_mib(tier, sharding="DDP"), rel=2e-3)
    assert planned_mib(tier) < 0.95 * budget, "FSDP by block fits"
    assert planned_mib(tier, wrap="whole") > 1.05 * budget, "one unit does not"
    assert planned_mib(tier, depth=2) > 1.2 * budget, "nor does twice the depth"
    assert planned_mib(tier, depth=2, recompute="full") < 0.9 * budget, "but with checkpointing it does"


def test_on_gpus_the_reference_is_checkpointed_fsdp_which_fits(monkeypatch):
    model = Transformer(preset("1M", n_layers=2))
    for name in ("ddp", "by_block_checkpointed"):
        monkeypatch.setattr(on_ranks, name, lambda model, lr, name=name: name)
    assert on_ranks.REFERENCE["train"](model, 1e-3) == "ddp"
    monkeypatch.setattr(on_ranks, "local_device", lambda: torch.device("cuda", 0))
    assert on_ranks.REFERENCE["train"](model, 1e-3) == "by_block_checkpointed"


def test_checkpointed_fsdp_has_ddps_losses_and_less_memory():
    ddp, fsdp = (
        launch(on_ranks.train, 4, each, "cpu", 1, 2, device="cpu", timeout_s=deadline_s(90))
        for each in (on_ranks.ddp, on_ranks.by_block_checkpointed)
    )
    assert (
        judge_peak_and_losses.loss_error([r["losses"] for r in fsdp], [r["losses"] for r in ddp])
        < judge_peak_and_losses.TOLERANCE / 50
    )
    assert sum(fsdp[0]["peak"].values()) < 0.5 * sum(ddp[0]["peak"].values())


def test_the_notebook_states_the_judges_budgets():
    (cell,) = [c for c in read_lab("labs", LAB).cells if c.metadata.nbgrader.grade_id == "budgets"]
    assert ast.literal_eval(ast.parse(cell.source).body[0].value) == on_ranks.BUDGETS


@pytest.mark.night
def test_the_planners_ddp_is_the_one_that_runs():
    """Budgets are cut from the reference's peak, so a depth by the planner is as right as one that was measured."""
    tier = TIERS["cpu"]
    peak = launch(on_ranks.train, 4, on_ranks.ddp, "cpu", 0, 1, device="cpu", timeout_s=deadline_s(60))[0]["peak"]
    assert sum(peak.values()) / MIB == pytest.approx(planned_mib(tier, sharding="DDP"), rel=1e-3)


@pytest.mark.night
@pytest.mark.parametrize("name", ["right", "right_checkpoint_function"])
def test_the_race_on_gpus_runs_on_cpu_ranks_too(name, answers, referees, monkeypatch):
    """The tier's model is really computed, as on GPUs; only the device is another."""
    monkeypatch.setattr(judge_speed, "on_gpus", lambda s: True)
    sample = next(s for s in samples(LAB) if s.name == name)
    [verdict] = referees(LAB).judge(answers(sample), only="lab4.speed")
    assert verdict.passed or verdict.inconclusive
    assert "tokens a second, forward and backward" in verdict.figures or verdict.inconclusive


def test_forwards_of_blocks_are_counted_by_formula():
    """FlopCounterMode's count of a step, 629,145,600 for four blocks and 1,233,125,376 for eight, is linear in them."""
    four, eight = 629_145_600, 1_233_125_376
    assert 3 * judge_sharded_units_recompute._forward_of_blocks("cpu", eight) == 2 * (eight - four)


def test_what_is_due_is_full_shard_by_block():
    config = TIERS["cpu"].model
    model = Transformer(config)
    due = judge_sharded_units_recompute._expected("cpu", 1)
    assert due == Expected("FULL_SHARD", due.units, 4) and len(due.units) == config.n_layers + 1
    assert [[p.shape for p in unit] for unit in due.units] == [
        [p.shape for p in unit] for unit in units_of(model, model.blocks)
    ]
