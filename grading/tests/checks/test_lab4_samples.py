"""Lab 4's class before the referee; its budgets and its price beside the planner's and beside real ranks."""

import ast
import json
import random
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest
import torch
from deadlines import deadline_s
from submissions import checks_that_nothing_needs, class_of, concerned, judge_replies, surprises_of, try_sample

from grading.boxes.sandbox.kernel_counters import Seen
from grading.checks.lab4_fsdp import (
    budget,
    judge_largest_ddp_depth,
    judge_sharded_units_recompute,
    offload_cost,
    on_ranks,
    scaling_efficiency,
    speed,
)
from grading.judge.timed_laps import Lap
from grading.judge.timing_verdict import Timing
from grading.samples import read_lab, samples
from shardlab import launch
from shardlab.model import ModelConfig, Transformer, preset
from shardlab.tier import TIERS
from shardplan.api import setup_of
from shardplan.formulas import Expected, units_of
from shardplan.memory import memory_plan
from shardplan.shape import Shape
from shardplan.traffic.host import host_bytes

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
    assert budget.loss_error([r["losses"] for r in fsdp], [r["losses"] for r in ddp]) < budget.TOLERANCE / 50
    assert sum(fsdp[0]["peak"].values()) < 0.5 * sum(ddp[0]["peak"].values())


def test_the_solutions_price_counts_a_tied_root_once():
    """The check's models are not tied, but the cell that tries the price has the tier's: 1B is."""
    (cell,) = [c for c in read_lab("solutions", LAB).cells if c.metadata.nbgrader.grade_id == "offload_price"]
    names: dict = {}
    exec(cell.source, names)
    for config in (preset("1M"), preset("1M", tied=True)):
        price = names["offload_price"](config, 4, 25e9, 200e9)
        assert (price["to_device_bytes"], price["to_host_bytes"]) == offload_cost.copied_bytes(config, 4)


def test_the_notebook_states_the_judges_budgets():
    (cell,) = [c for c in read_lab("labs", LAB).cells if c.metadata.nbgrader.grade_id == "budgets"]
    assert ast.literal_eval(ast.parse(cell.source).body[0].value) == on_ranks.BUDGETS


@pytest.mark.night
def test_the_planners_ddp_is_the_one_that_runs():
    """Budgets are cut from the reference's peak, so a depth by the planner is as right as one that was measured."""
    tier = TIERS["cpu"]
    peak = launch(on_ranks.train, 4, on_ranks.ddp, "cpu", 0, 1, device="cpu", timeout_s=deadline_s(60))[0]["peak"]
    assert sum(peak.values()) / MIB == pytest.approx(planned_mib(tier, sharding="DDP"), rel=1e-3)


def test_a_depth_without_buckets_is_named():
    """The peak of `each` bytes a block and 20 a parameter of the rest; the answer forgets 4 bytes of each parameter."""
    asked, right, forgetful = [], [6, 9], []
    peaks = [[5_000_000 * n + 1_300_000 for n in (d, d + 1)] for d in right]
    for d, (low, high) in zip(right, peaks, strict=True):
        asked.append({"config": asdict(preset("1M")), "budget_bytes": (low + high) // 2})
        forgetful.append(judge_largest_ddp_depth._without_buckets(asked[-1], d, [low, high]) - d)
    assert max(forgetful) > 0
    assert "DDP's buckets are free" in judge_largest_ddp_depth._cause(forgetful, asked, right, peaks)
    assert "something is not counted" in judge_largest_ddp_depth._cause([5, 5], asked, right, peaks)
    assert "something is counted twice" in judge_largest_ddp_depth._cause([-1, 0], asked, right, peaks)


@pytest.mark.parametrize("seed", range(0, 100, 7))
def test_no_count_of_the_states_alone_gives_the_right_depths(seed):
    """Nor half the points, which are for answers that are off by one. The peaks are the planner's."""
    off = {n_bytes: 0 for n_bytes in (16, 20, 24)}
    for i in range(judge_largest_ddp_depth.INSTANCES):
        drawn = judge_largest_ddp_depth._instance(seed * judge_largest_ddp_depth.INSTANCES + i)
        n, sizes = drawn.pop("n_layers"), {k: drawn[k] for k in ("micro_batch", "seq_len")}
        peaks = [
            ddp_peak_bytes(ModelConfig(**drawn["config"] | {"n_layers": deep}), optimizer_kernel="forloop", **sizes)
            for deep in (n, n + 1)
        ]
        for n_bytes in off:
            found = judge_largest_ddp_depth._states_alone(n_bytes)(drawn | {"budget_bytes": sum(peaks) // 2})
            off[n_bytes] = max(off[n_bytes], abs(found - n))
    assert min(off.values()) > 1, off


def ddp_peak_bytes(config, **sizes):
    setup = setup_of(Shape.of("drawn", config), "dgx-h100", 2, sharding="DDP", precision="fp32", **sizes)
    return memory_plan(setup).peak.n_bytes


@pytest.mark.parametrize("found", [float("nan"), float("inf")])
def test_what_is_not_a_number_is_infinitely_wrong(found):
    tables = [scaling_efficiency._table(0, "weak")]
    replies = [dict.fromkeys(scaling_efficiency.truth(tables[0]), found)]
    assert scaling_efficiency._worst(replies, tables, scaling_efficiency.truth) == float("inf")
    assert "not a finite number" in scaling_efficiency._cause("weak", replies, tables)
    assert max(1.0, offload_cost._off(found, 1.0)) == float("inf")


def lap(mine: list[float], reference: list[float]) -> Lap:
    return Lap(0, [{"squares": x} for x in mine], 1.0, [{"squares": x} for x in reference])


def test_a_lap_on_gpus_has_the_references_gradients_in_all():
    assert speed.agrees(lap([1.0, 3.0], [2.0, 2.0]))
    assert not speed.agrees(lap([1.0, 1.0], [2.0, 2.0]))  # half of the work
    assert not speed.agrees(lap([4.0, 4.0], [2.0, 2.0]))  # whole gradients on every rank
    assert not speed.agrees(lap([float("nan"), 3.0], [2.0, 2.0]))


@pytest.mark.night
@pytest.mark.parametrize("name", ["right", "right_other_style"])
def test_the_race_on_gpus_runs_on_cpu_ranks_too(name, answers, referees, monkeypatch):
    """The tier's model is really computed, as on GPUs; only the device is another."""
    monkeypatch.setattr(speed, "on_gpus", lambda s: True)
    sample = next(s for s in samples(LAB) if s.name == name)
    [verdict] = referees(LAB).judge(answers(sample), only="lab4.speed")
    assert verdict.passed or verdict.inconclusive
    assert "tokens a second, forward and backward" in verdict.figures or verdict.inconclusive


def test_the_reference_scales_as_its_seconds_say(monkeypatch):
    timing = Timing(1.0, 0.9, 1.1, mine_s=0.5, reference_s=0.4, pairs=16)
    session = SimpleNamespace(tier=TIERS["gpu4"], watch_reference=lambda drill, **_: SimpleNamespace(replies=[0.3]))
    figures = speed._throughput(session, timing)
    tokens = TIERS["gpu4"].micro_batch * TIERS["gpu4"].seq_len * 4
    assert figures["tokens a second, forward and backward"][0] == f"{tokens / 0.5:,.0f}"
    assert figures["scaling efficiency, 1 to 4 GPUs, one unit a block"][0] == "0.75"
    session.tier = TIERS["gpu1"]  # its ranks share the GPU
    assert len(speed._throughput(session, timing)) == 1


def test_bytes_that_cross_are_the_planners():
    """`offload` finds them on real ranks, in sample `right`: three accounts of one thing."""
    config = preset("1M")
    setup = setup_of(Shape.of("1M", config), "dgx-h100", 4, offload="cpu", precision="fp32", seq_len=64)
    assert sum(offload_cost.copied_bytes(config, 4)) == host_bytes(setup)["host"]


@pytest.mark.parametrize("seed", range(0, 200, 7))
def test_no_usual_mistake_gives_the_right_price(seed):
    instances = [offload_cost._instance(seed * offload_cost.INSTANCES + i) for i in range(offload_cost.INSTANCES)]
    truths = [offload_cost.truth(**i) for i in instances]
    for name, mistakes in offload_cost._MISTAKES.items():
        for words, mistaken in mistakes.items():
            off = [abs(mistaken(i, t) / t[name] - 1) for i, t in zip(instances, truths, strict=True)]
            assert max(off) > 5 * offload_cost.CLOSE, (name, words)


@pytest.mark.parametrize("seed", range(0, 40, 3))
@pytest.mark.parametrize("kind", scaling_efficiency.KINDS)
def test_efficiency_of_drawn_tables_is_between_0_and_1_and_does_not_depend_on_their_order(kind, seed):
    runs = scaling_efficiency._table(seed, kind)
    right = scaling_efficiency.truth(runs)
    assert all(0.1 < e < 1.5 for e in right.values()) and right[min(right, key=int)] == 1
    random.Random(seed).shuffle(runs)
    assert scaling_efficiency.truth(runs) == right


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


# The judges alone, on what ranks might reply


def judged_training(check="lab4.fits", losses=1.0, peak=0.0, rank=2, step=0, seen=None):
    """Of one rank one loss is so many times DDP's, and its peak so many bytes beyond the budget."""
    most = int(on_ranks.BUDGETS["cpu"] * MIB)

    def reply(r, spoilt=True):
        due = [5.0, 4.0, 3.0]
        if spoilt and r == rank:
            due[step] *= losses
        held = {"parameters": most - 1000, "activations": 1000 + int(peak if spoilt and r == rank else 0)}
        return {"losses": due, "peak": held, "where": "forward", "moments": [held]}

    mine, reference = [reply(r) for r in range(4)], [reply(r, spoilt=False) for r in range(4)]
    claimed = 4 * most
    looks = (Seen(), Seen()) if seen is None else (Seen(10**9 + claimed + int(4 * seen)), Seen(10**9 + claimed))
    return judge_replies(check, {"train": mine, "seen": looks[0]}, {"train": reference, "seen": looks[1]})


def test_a_training_fits_its_budget_and_has_ddps_losses_on_every_rank():
    for rank in range(4):
        assert judged_training(rank=rank).points == 3
        over = judged_training(peak=1, rank=rank)
        assert (over.points, "it runs out of memory: at the peak, in forward" in over.cause) == (0, True)
        for step, words in enumerate(("the first loss is not DDP's", "the later ones are not", "the later ones")):
            assert judged_training(losses=1.0009, rank=rank, step=step).points == 3
            other = judged_training(losses=1.0012, rank=rank, step=step)
            assert (other.points, words in other.cause) == (0, True)
    assert judged_training(losses=float("nan")).points == 0


def test_memory_that_no_account_explains_is_no_training_within_the_budget():
    assert judged_training(seen=budget.SPARE_MEMORY - 10).points == 3
    hidden = judged_training(seen=budget.SPARE_MEMORY + 10)
    assert (hidden.points, "the system saw" in hidden.cause) == (0, True)


def judged_offload(to_device=1.0, to_host=1.0, on_device=0, losses=1.0):
    """In times of what is due; of one rank."""
    due = offload_cost.copied_bytes(on_ranks.config_of(TIERS["cpu"], 1), 4)

    def reply(*times, on_device=0, losses=1.0):
        ways = {name: t * n for name, t, n in zip(("to_device", "to_host"), times, due, strict=True)}
        return ways | {"losses": [losses * 5.0, 4.0, 3.0], "on_device": on_device, "held": 1}

    right = reply(1.0, 1.0)
    mine = [right, right, reply(to_device, to_host, on_device=on_device, losses=losses), right]
    return judge_replies("lab4.offload", {"offload": mine}, {"train": [right] * 4})


def test_offloading_is_all_bytes_both_ways_and_half_of_them_is_worth_half():
    assert judged_offload().points == judged_offload(0.991, 1.009).points == 3
    for some in (judged_offload(0.98), judged_offload(to_host=0.98), judged_offload(0.5), judged_offload(on_device=4)):
        assert (some.points, "some unit keeps its shards" in some.cause) == (1.5, True)
    for little in (judged_offload(0.49), judged_offload(to_host=0.49)):
        assert (little.points, "hardly anything" in little.cause) == (0, True)
    for much in (judged_offload(1.02), judged_offload(to_host=1.02)):
        assert (much.points, "more is copied than the shards" in much.cause) == (0, True)
    assert judged_offload(losses=1.002).points == 0


def test_a_depth_that_is_off_by_one_is_worth_half():
    drawn = [
        judge_largest_ddp_depth._instance(1 * judge_largest_ddp_depth.INSTANCES + i)
        for i in range(judge_largest_ddp_depth.INSTANCES)
    ]
    peaks = [[10**8, 2 * 10**8]] * judge_largest_ddp_depth.INSTANCES

    def judged(*off):
        depths = [d["n_layers"] + n for d, n in zip(drawn, off, strict=True)]
        return judge_replies("lab4.depth", {"largest_depth": [depths]}, {"ddp_peaks": [peaks]}).points

    assert judged(0, 0, 0) == 2
    assert judged(0, 1, 0) == judged(-1, 0, 1) == 1
    assert judged(0, 2, 0) == judged(0, 0, -2) == 0


@pytest.fixture(scope="module")
def accounts():
    """What four ranks reply of FSDP by block, and of torch's DDP; of models as deep as the tier's."""
    of_ranks = launch(_accounts, 4, on_ranks.by_block, on_ranks.ddp, device="cpu", timeout_s=deadline_s(90))
    return {name: [found[i] for found in of_ranks] for i, name in enumerate(("by block", "ddp"))}


def _accounts(*implementations):
    return [on_ranks.record_step(each, tier="cpu", seed=1, depth=1) for each in implementations]


def test_only_what_is_sharded_by_block_with_torchs_engine_is(accounts):
    right = accounts["by block"]
    assert judge_replies("lab4.sharded", {"record_step": right}).points == 3
    assert judge_replies("lab4.units", {"record_step": right}).points == 3
    replicated = judge_replies("lab4.sharded", {"record_step": accounts["ddp"]})
    assert (replicated.points, "the parameters are not sharded" in replicated.cause) == (0, True)
    assert judge_replies("lab4.units", {"record_step": accounts["ddp"]}).points == 0
    own_engine = [right[0] | {"torchs": False}, *right[1:]]
    other = judge_replies("lab4.sharded", {"record_step": own_engine})
    assert (other.points, "this lab is about torch's own engine" in other.cause) == (0, True)


def spoilt(replies: list[dict], change) -> list[dict]:
    """With the last rank's evidence changed."""
    copies = json.loads(json.dumps(replies))
    change(copies[-1]["evidence"])
    return copies


def test_one_rank_that_holds_or_sends_more_is_enough(accounts):
    right = accounts["by block"]

    def holds(name):
        def change(evidence):
            evidence["held"]["between"][name] = int(1.5 * evidence["held"]["between"].get(name, 0)) + 10**6

        return judge_replies("lab4.sharded", {"record_step": spoilt(right, change)})

    assert (holds("parameters").points, holds("optimizer_states").points, holds("other").points) == (0, 0, 0)
    assert "optimizer holds more than its share" in holds("optimizer_states").cause

    def whole(evidence):
        evidence["peak"]["unsharded"] *= 3

    at_once = judge_replies("lab4.units", {"record_step": spoilt(right, whole)})
    assert (at_once.points, "too much is whole at a time" in at_once.cause) == (0, True)


def test_recomputation_costs_one_forward_and_drops_a_quarter(accounts, monkeypatch):
    """Of the model that the accounts are of, as if it were as deep as is asked."""
    plain = accounts["by block"]
    monkeypatch.setattr(
        judge_sharded_units_recompute,
        "_expected",
        lambda tier, depth, expected=judge_sharded_units_recompute._expected: expected(tier, 1),
    )
    forward = judge_sharded_units_recompute._forward_of_blocks("cpu", plain[0]["flops"])

    def judged(again=1.0, kept=0.75, torchs=True):
        copies = json.loads(json.dumps(plain))
        for reply in copies:
            reply["flops"] += int(again * forward)
            reply["evidence"]["peak"]["activations"] = int(kept * reply["evidence"]["peak"]["activations"])
            reply["torchs"] = torchs
        return judge_replies("lab4.recompute", {"record_step": copies}, {"record_step": plain})

    assert judged().points == judged(again=1.009).points == 3
    said = {
        "no block is recomputed": judged(kept=0.76),
        "something is recomputed twice": judged(again=1.02),
        "torch's own engine": judged(torchs=False),
    }
    assert {words: v.cause for words, v in said.items() if v.points or words not in v.cause} == {}
