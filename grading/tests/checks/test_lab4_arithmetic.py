"""Lab 4's answers that are arithmetic: what is drawn makes every term matter, and its judges on what a rank replies."""

import random
from dataclasses import asdict, replace

import pytest
from submissions import judge_replies

from grading.checks.lab4_fsdp import (
    arithmetic_answers_on_rank,
    judge_largest_ddp_depth,
    judge_offload_cost,
    judge_scaling_efficiency,
)
from grading.references import lab4_fsdp
from grading.references.lab4_fsdp import offload_costs, scaling_efficiencies
from grading.samples.sample import read_lab
from shardlab.model import ModelConfig, preset
from shardplan.api import setup_of
from shardplan.memory import memory_plan
from shardplan.shape import Shape
from shardplan.traffic.host import host_bytes

LAB = "lab4_fsdp"

# Depth


@pytest.mark.parametrize("seed", range(0, 60, 12))
def test_every_number_that_a_depth_depends_on_changes_an_answer(seed):
    """No count of the states alone gives half of the points, which are for answers that are off by one."""
    off = dict.fromkeys(WRONG, 0) | dict.fromkeys((16, 20, 24), 0)
    for drawn in judge_largest_ddp_depth._instances(seed):
        right, config = drawn["right"], ModelConfig(**drawn["config"])
        sizes = {name: drawn[name] for name in ("micro_batch", "seq_len")}
        peaks = [ddp_peak_bytes(replace(config, n_layers=n), **sizes) for n in (right, right + 1)]
        budget_bytes = sum(peaks) // 2
        for words, (changes, others) in WRONG.items():
            found = deepest(budget_bytes, replace(config, **{k: f(config) for k, f in changes.items()}), sizes | others)
            off[words] = max(off[words], abs(found - right))
        for n_bytes in (16, 20, 24):
            found = judge_largest_ddp_depth._states_alone(n_bytes)(drawn | {"budget_bytes": budget_bytes})
            off[n_bytes] = max(off[n_bytes], abs(found - right) - 1)
    assert min(off.values()) > 0, off


WRONG = {  # what an answer might take for granted: changes of the config, and of the steps
    "one vocabulary": ({"vocab_size": lambda c: 512}, {}),
    "as many heads of keys as of queries": ({"n_kv_heads": lambda c: c.n_heads}, {}),
    "untied": ({"tied": lambda c: False}, {}),
    "a hidden width of three": ({"hidden_dim": lambda c: 3 * c.dim}, {}),
    "64 tokens": ({}, {"seq_len": 64}),
    "one sequence": ({}, {"micro_batch": 1}),
    "two sequences": ({}, {"micro_batch": 2}),
}


def deepest(budget_bytes: int, config: ModelConfig, sizes: dict) -> int:
    """Return the depth that fits by the planner, whose peak is linear in the depth."""
    few, more = (ddp_peak_bytes(replace(config, n_layers=n), **sizes) for n in (4, 5))
    return max(1, 4 + (budget_bytes - few) // (more - few))


def ddp_peak_bytes(config: ModelConfig, **sizes) -> int:
    planned = {"sharding": "DDP", "precision": "fp32", "optimizer_kernel": "forloop"} | sizes
    return memory_plan(setup_of(Shape.of("drawn", config), "dgx-h100", 2, **planned)).peak.n_bytes


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


def judged_depth(*off: int, seconds: float = 1.0, reference_s: float = 1.0):
    drawn = judge_largest_ddp_depth._instances(1)
    depths = [d["right"] + n for d, n in zip(drawn, off, strict=True)]
    reference = {"peaks": [[10**8, 2 * 10**8]] * len(drawn), "seconds": reference_s}
    mine = {"depths": depths, "seconds": seconds}
    return judge_replies("lab4.depth", {"largest_depth": [mine]}, {"ddp_peaks": [reference]})


def test_a_depth_that_is_off_by_one_is_worth_half():
    assert judged_depth(0, 0, 0).points == 2
    assert judged_depth(0, 1, 0).points == judged_depth(-1, 0, 1).points == 1
    assert judged_depth(0, 2, 0).points == judged_depth(0, 0, -2).points == 0


def test_a_depth_has_15_seconds_and_more_on_a_busy_machine():
    assert judged_depth(0, 0, 0, seconds=14.9).points == judged_depth(0, 0, 0, seconds=29, reference_s=3).points == 2
    late = judged_depth(0, 0, 0, seconds=42)
    assert (late.points, late.cause) == (0, "it takes 42 s, where 15 s are allowed.")


@pytest.mark.parametrize("answer", [7.3, "7", None, True, [7], float("nan")])
def test_a_depth_that_is_no_int_is_said_so_in_one_line(answer):
    instance = {"config": asdict(preset("1M")), "budget_bytes": 1, "micro_batch": 1, "seq_len": 64}
    with pytest.raises(TypeError, match=r"^largest_ddp_depth must return an int, and returns .*$"):
        arithmetic_answers_on_rank.largest_depth(lambda *_: answer, [instance])


def test_answers_are_called_by_position():
    instance = {"config": asdict(preset("1M")), "budget_bytes": 1, "micro_batch": 1, "seq_len": 64}
    assert arithmetic_answers_on_rank.largest_depth(lambda a, b, c, d: d, [instance])["depths"] == [64]
    for i in judge_offload_cost.instances_of(0)[:1]:
        found = arithmetic_answers_on_rank.price(lambda a, b, c, d: {"ranks": b, "link": c, "memory": d}, [i])
        assert found["prices"] == [
            {"ranks": i["world_size"], "link": i["link_bytes_per_s"], "memory": i["host_memory_bytes_per_s"]}
        ]


@pytest.mark.parametrize("answer", [None, 1.0, [1.0], "text", {1: "text"}, {1: None}, {1: [1.0]}, dict])
def test_an_answer_that_is_no_dict_of_numbers_is_said_so_in_one_line(answer):
    with pytest.raises(TypeError, match=r"^efficiency must return (a dict|numbers), and [^\n]{,110}$"):
        arithmetic_answers_on_rank.efficiency(lambda runs: answer, [[]])


def test_a_grader_s_own_formula_is_no_answer():
    instances = judge_offload_cost.instances_of(0)
    taken = lambda c, *machine: offload_costs.truth(asdict(c), *machine)  # noqa: E731
    reply = arithmetic_answers_on_rank.price(taken, instances)
    verdict = judge_replies("lab4.price", {"price": [reply]})
    assert (verdict.points, "which is finished" in verdict.cause) == (0, True)
    right = reply | {"finished": []}
    assert judge_replies("lab4.price", {"price": [right]}, seed=0).points == 3


def test_a_price_of_0_is_judged():
    reply = {"prices": [dict.fromkeys(judge_offload_cost.NAMES, 0.0)] * judge_offload_cost.INSTANCES, "finished": []}
    verdict = judge_replies("lab4.price", {"price": [reply]})
    assert (verdict.points, "to_device_bytes is 0 times" in verdict.cause) == (0, True)


# Price


def test_the_solutions_price_counts_a_tied_root_once():
    """The check's models are not tied, but the cell that tries the price has the tier's: 1B is."""
    (cell,) = [c for c in read_lab("solutions", LAB).cells if c.metadata.nbgrader.grade_id == "offload_price"]
    names: dict = {}
    exec(cell.source, names)
    for config in (preset("1M"), preset("1M", tied=True)):
        price = names["offload_price"](config, 4, 25e9, 200e9)
        assert (price["to_device_bytes"], price["to_host_bytes"]) == offload_costs.copied_bytes(config, 4)


def test_bytes_that_cross_are_the_planners():
    """`offload` finds them on real ranks, in sample `right`: three accounts of one thing."""
    config = preset("1M")
    setup = setup_of(Shape.of("1M", config), "dgx-h100", 4, offload="cpu", precision="fp32", seq_len=64)
    assert sum(offload_costs.copied_bytes(config, 4)) == host_bytes(setup)["host"]


@pytest.mark.parametrize("seed", range(0, 200, 7))
def test_no_usual_mistake_gives_the_right_price(seed):
    instances = judge_offload_cost.instances_of(seed)
    truths = [offload_costs.truth(**i) for i in instances]
    for name, mistakes in offload_costs.MISTAKES.items():
        for words, mistaken in mistakes.items():
            off = [abs(mistaken(i, t) / t[name] - 1) for i, t in zip(instances, truths, strict=True)]
            assert max(off) > 0.05, (name, words)


@pytest.mark.parametrize("seed", range(0, 200, 7))
def test_a_last_norm_that_is_forgotten_is_found(seed):
    off = []
    for i in judge_offload_cost.instances_of(seed):
        c, due = ModelConfig(**i["config"]), offload_costs.truth(**i)["to_device_bytes"]
        off.append(4 * c.dim / i["world_size"] / due)
    assert max(off) > 3 * judge_offload_cost.CLOSE


@pytest.mark.parametrize("name", ["world_size", "link_bytes_per_s", "host_memory_bytes_per_s"])
def test_every_number_of_a_machine_changes_a_price(name):
    instances = judge_offload_cost.instances_of(3)
    assert len({i[name] for i in instances}) == 3
    for i in instances:
        other = i | {name: 2 * i[name]}
        assert abs(offload_costs.truth(**other)["seconds"] / offload_costs.truth(**i)["seconds"] - 1) > 0.03


# Efficiency


@pytest.mark.parametrize("seed", range(0, 40, 3))
@pytest.mark.parametrize("kind", judge_scaling_efficiency.KINDS)
def test_efficiency_of_drawn_tables_is_between_0_and_1_and_does_not_depend_on_their_order(kind, seed):
    for runs in judge_scaling_efficiency.tables_of(seed, kind):
        right = scaling_efficiencies.truth(runs)
        assert all(0.1 < e < 1.5 for e in right.values()) and right[min(right, key=int)] == 1
        random.Random(seed).shuffle(runs)
        assert scaling_efficiencies.truth(runs) == right


RIGHT_FOR_WEAK = "step times alone are compared; but the ranks' batches are not equal"
RIGHT_FOR_STRONG = "every run is taken to consume the same tokens, as in strong scaling"


@pytest.mark.parametrize("seed", range(0, 60, 3))
@pytest.mark.parametrize("kind", judge_scaling_efficiency.KINDS)
def test_no_usual_mistake_gives_the_right_efficiency(kind, seed):
    tables = judge_scaling_efficiency.tables_of(seed, kind)
    mistakes = dict(scaling_efficiencies.MISTAKES) | {
        "tokens are guessed": lambda runs: scaling_efficiencies.truth(
            runs, tokens=lambda r: r["ranks"] * (r["micro_batch"] + r["accumulation"] - 8) * r["seq_len"]
        ),
        "the quickest step": lambda runs: scaling_efficiencies.truth(runs, summary=min),
    }
    del mistakes[RIGHT_FOR_WEAK if kind == "weak" else RIGHT_FOR_STRONG]
    for words, mistaken in mistakes.items():
        off = judge_scaling_efficiency._worst(
            list(map(mistaken, tables)), list(map(scaling_efficiencies.truth, tables))
        )
        assert off > 1.5 * judge_scaling_efficiency.CLOSE, words


def test_the_tokens_of_a_rank_stay_in_weak_scaling_and_shrink_in_strong_scaling():
    for kind in judge_scaling_efficiency.KINDS:
        for runs in judge_scaling_efficiency.tables_of(5, kind):
            tokens = {scaling_efficiencies.tokens_of(r) / (r["ranks"] if kind == "weak" else 1) for r in runs}
            assert len(tokens) == 1
            assert (
                all(len({r[name] for r in runs}) > 1 for name in judge_scaling_efficiency.FACTORS) or kind == "strong"
            )
            assert runs[0]["ranks"] != min(r["ranks"] for r in runs)


@pytest.mark.parametrize("found", [float("nan"), float("inf")])
def test_what_is_not_a_number_is_infinitely_wrong(found):
    tables = judge_scaling_efficiency.tables_of(0, "weak")[:1]
    known = lab4_fsdp.efficiencies(tables)
    replies = [dict.fromkeys(known["right"][0], found)]
    assert judge_scaling_efficiency._worst(replies, known["right"]) == float("inf")
    assert "not a finite number" in judge_scaling_efficiency._cause("weak", replies, known)
    assert max(1.0, judge_offload_cost._off(found, 1.0)) == float("inf")
