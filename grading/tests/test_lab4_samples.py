"""Lab 4's class before the referee; its budgets and its price beside the planner's and beside real ranks."""

import ast
import random
from dataclasses import asdict, replace

import pytest
from submissions import checks_that_nothing_needs, class_of, try_sample

from grading.checks.lab4_fsdp import depth, drills, efficiency, evidence, price
from grading.samples import read_lab
from shardlab import launch
from shardlab.measure.strategies import Expected, units_of
from shardlab.model import ModelConfig, Transformer, preset
from shardlab.simulate.plan.api import setup_of
from shardlab.simulate.plan.memory import memory_plan
from shardlab.simulate.plan.shape import Shape
from shardlab.simulate.plan.traffic.host import host_bytes
from shardlab.tier import TIERS

LAB = "lab4_fsdp"
MIB = 2**20
QUICK = ("hidden_copy",)
SHARE_OF_DDP = 2 / 3


@pytest.mark.parametrize("sample", class_of(LAB, QUICK))
def test_sample_gets_its_points_and_its_cause(sample, answers, referees):
    try_sample(sample, answers(sample), referees(LAB))


def test_every_check_stops_a_sample_that_no_other_check_stops():
    assert checks_that_nothing_needs(LAB) == set()


def planned_mib(tier, depth=1, **strategy):
    kernel = "forloop" if tier.device == "cpu" else "foreach"
    sizes = {"micro_batch": tier.micro_batch, "seq_len": tier.seq_len, "precision": "fp32", "optimizer_kernel": kernel}
    shape = Shape.of("lab 4", replace(tier.model, n_layers=depth * tier.model.n_layers))
    return memory_plan(setup_of(shape, "dgx-h100", tier.world_size, **sizes, **strategy)).peak.n_bytes / MIB


@pytest.mark.parametrize("tier", TIERS.values(), ids=TIERS)
def test_a_budget_is_two_thirds_of_ddp_and_asks_the_same_on_every_tier(tier):
    budget = drills.BUDGETS[tier.name]
    assert budget == pytest.approx(SHARE_OF_DDP * planned_mib(tier, sharding="DDP"), rel=2e-3)
    assert planned_mib(tier) < 0.95 * budget, "FSDP by block fits"
    assert planned_mib(tier, wrap="whole") > 1.05 * budget, "one unit does not"
    assert planned_mib(tier, depth=2) > 1.2 * budget, "nor does twice the depth"
    assert planned_mib(tier, depth=2, recompute="full") < 0.9 * budget, "but with checkpointing it does"


def test_the_notebook_states_the_judges_budgets():
    (cell,) = [c for c in read_lab("labs", LAB).cells if c.metadata.nbgrader.grade_id == "budgets"]
    assert ast.literal_eval(cell.source.split("=")[1].split("#")[0].strip()) == drills.BUDGETS


def test_the_planners_ddp_is_the_one_that_runs():
    """Budgets are cut from the reference's peak, so a depth by the planner is as right as one that was measured."""
    tier = TIERS["cpu"]
    peak = launch(drills.train, 4, drills.ddp, "cpu", 0, 1, device="cpu", timeout_s=60)[0]["peak"]
    assert sum(peak.values()) / MIB == pytest.approx(planned_mib(tier, sharding="DDP"), rel=1e-3)


def test_a_depth_without_buckets_is_named():
    """The peak of `each` bytes a block and 20 a parameter of the rest; the answer forgets 4 bytes of each parameter."""
    asked, right, forgetful = [], [6, 9], []
    peaks = [[5_000_000 * n + 1_300_000 for n in (d, d + 1)] for d in right]
    for d, (low, high) in zip(right, peaks, strict=True):
        asked.append({"config": asdict(preset("1M")), "budget_bytes": (low + high) // 2})
        forgetful.append(depth._without_buckets(asked[-1], d, [low, high]) - d)
    assert max(forgetful) > 0
    assert "DDP's buckets are free" in depth._cause(forgetful, asked, right, peaks)
    assert "something is not counted" in depth._cause([5, 5], asked, right, peaks)
    assert "something is counted twice" in depth._cause([-1, 0], asked, right, peaks)


@pytest.mark.parametrize("seed", range(0, 100, 7))
def test_no_count_of_the_states_alone_gives_the_right_depths(seed):
    """Nor half the points, which are for answers that are off by one. The peaks are the planner's."""
    off = {n_bytes: 0 for n_bytes in (16, 20, 24)}
    for i in range(depth.INSTANCES):
        drawn = depth._instance(seed * depth.INSTANCES + i)
        n, sizes = drawn.pop("n_layers"), {k: drawn[k] for k in ("micro_batch", "seq_len")}
        peaks = [
            ddp_peak_bytes(ModelConfig(**drawn["config"] | {"n_layers": deep}), optimizer_kernel="forloop", **sizes)
            for deep in (n, n + 1)
        ]
        for n_bytes in off:
            found = depth._states_alone(n_bytes)(drawn | {"budget_bytes": sum(peaks) // 2})
            off[n_bytes] = max(off[n_bytes], abs(found - n))
    assert min(off.values()) > 1, off


def ddp_peak_bytes(config, **sizes):
    setup = setup_of(Shape.of("drawn", config), "dgx-h100", 2, sharding="DDP", precision="fp32", **sizes)
    return memory_plan(setup).peak.n_bytes


@pytest.mark.parametrize("found", [float("nan"), float("inf")])
def test_what_is_not_a_number_is_infinitely_wrong(found):
    tables = [efficiency._table(0, "weak")]
    replies = [dict.fromkeys(efficiency.truth(tables[0]), found)]
    assert efficiency._worst(replies, tables, efficiency.truth) == float("inf")
    assert "not a finite number" in efficiency._cause("weak", replies, tables)
    assert max(1.0, price._off(found, 1.0)) == float("inf")


def test_bytes_that_cross_are_the_planners():
    """`offload` finds them on real ranks, in sample `right`: three accounts of one thing."""
    config = preset("1M")
    setup = setup_of(Shape.of("1M", config), "dgx-h100", 4, offload="cpu", precision="fp32", seq_len=64)
    assert sum(price.copied_bytes(config, 4)) == host_bytes(setup)["host"]


@pytest.mark.parametrize("seed", range(0, 200, 7))
def test_no_usual_mistake_gives_the_right_price(seed):
    instances = [price._instance(seed * price.INSTANCES + i) for i in range(price.INSTANCES)]
    truths = [price.truth(**i) for i in instances]
    for name, mistakes in price._MISTAKES.items():
        for words, mistaken in mistakes.items():
            off = [abs(mistaken(i, t) / t[name] - 1) for i, t in zip(instances, truths, strict=True)]
            assert max(off) > 5 * price.CLOSE, (name, words)


@pytest.mark.parametrize("seed", range(0, 40, 3))
@pytest.mark.parametrize("kind", efficiency.KINDS)
def test_efficiency_of_drawn_tables_is_between_0_and_1_and_does_not_depend_on_their_order(kind, seed):
    runs = efficiency._table(seed, kind)
    right = efficiency.truth(runs)
    assert all(0.1 < e < 1.5 for e in right.values()) and right[min(right, key=int)] == 1
    random.Random(seed).shuffle(runs)
    assert efficiency.truth(runs) == right


def test_forwards_of_blocks_are_counted_by_formula():
    """FlopCounterMode's count of a step, 629,145,600 for four blocks and 1,233,125,376 for eight, is linear in them."""
    four, eight = 629_145_600, 1_233_125_376
    assert 3 * evidence._forward_of_blocks("cpu", eight) == 2 * (eight - four)


def test_what_is_due_is_full_shard_by_block():
    config = TIERS["cpu"].model
    model = Transformer(config)
    due = evidence._expected("cpu", 1)
    assert due == Expected("FULL_SHARD", due.units, 4) and len(due.units) == config.n_layers + 1
    assert [[p.shape for p in unit] for unit in due.units] == [
        [p.shape for p in unit] for unit in units_of(model, model.blocks)
    ]
