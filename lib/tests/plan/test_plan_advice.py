"""Advice is never given without a plan that shows the gain; what limits a plan is said in the plan's own figures."""

import json
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest

from shardlab.measure.ledger import CATEGORIES
from shardlab.model import ModelConfig
from shardplan.advice.advice import LEAST_GAIN, Advice, advise
from shardplan.advice.bottleneck import bottleneck, memory_in_words, time_in_words
from shardplan.advice.changes import TRAINING, single_changes
from shardplan.api import figures_of, plan, plan_of, setup_of
from shardplan.records import MemoryPlan, Moment, Plan, SpeedPlan, Term
from shardplan.shape import Shape
from shardtrace.timeline import Timeline

GIB = 1 << 30
SETUP = setup_of("8B", "dgx-h100", 8)
CAPACITY = SETUP.machine.memory_bytes


def made(low: float = 1.0, high: float = 2.0, terms: tuple[Term, ...] = (), **speed) -> Plan:
    """A plan with these figures, made by hand."""
    moment = Moment("backward of the output layer", "backward", terms or (Term("activations", "kept", GIB),))
    parts_s = speed.pop("parts_s", {"computation": 0.6, "exposed communication": 0.4})
    waits_s = speed.pop("waits_s", {})
    links, timeline = {"inside": 1e9, "between": 0.0}, Timeline(0, ())
    return Plan(
        SETUP,
        MemoryPlan((moment,), (low, high), context_bytes=1.0),
        SpeedPlan(parts_s, waits_s, timeline, links, 1000, 1e12, 1.5e12, 1e13),
    )


# -------------------------------------------------------------------------------------------------------- does it fit?


@pytest.mark.parametrize(
    "allocated, reserved, fits, margin",
    [
        (CAPACITY - 3, CAPACITY - 1, "yes", (0, 2)),
        (CAPACITY - 1, CAPACITY, "maybe", (-1, 0)),
        (CAPACITY, CAPACITY + 5, "no", (-6, -1)),
    ],
)
def test_what_fits_fits_with_the_context_and_the_allocator_at_its_worst(allocated, reserved, fits, margin):
    """There is 1 byte of context. What the allocator takes when memory is plenty does not matter."""
    found = made(CAPACITY, reserved, terms=(Term("parameters", "all", allocated),))
    assert found.fits == fits
    assert found.margin_bytes == margin


def test_a_plan_is_json():
    found = plan("8B", "dgx-h100", 8, sharding="DDP")
    said = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert said["fits"] == found.fits and said["advice"] == list(found.advice)
    assert said["memory"]["allocated_bytes"] == found.memory.allocated_bytes
    assert sum(t["n_bytes"] for t in said["memory"]["peak"]["terms"]) == pytest.approx(found.memory.allocated_bytes)
    assert all(set(m["bytes"]) == set(CATEGORIES) for m in said["memory"]["moments"])
    assert sum(said["speed"]["parts_s"].values()) == pytest.approx(said["speed"]["step_s"])


# ---------------------------------------------------------------------------------------------------------- bottleneck


def test_the_largest_term_of_the_peak_is_named():
    """Terms of the same words count together."""
    kept = tuple(Term("activations", "kept by a block", GIB) for _ in range(5))
    found = made(terms=(*kept, Term("temporaries", "logits, B T V in fp32", 3 * GIB)))
    assert memory_in_words(found) == (
        "activations: 5.00 GiB of the peak's 8.00 GiB, in backward of the output layer; "
        "the largest: kept by a block (5.00 GiB)"
    )


def test_what_is_waited_for_longest_is_named():
    parts_s = {"computation": 0.4, "exposed communication": 0.6}
    found = made(parts_s=parts_s, waits_s={"reduce_scatters between nodes": 0.5, "all_gathers between nodes": 0.1})
    assert time_in_words(found) == (
        "exposed communication: 60% of a step of 1.00 s, most of it for reduce_scatters between nodes"
    )


@pytest.mark.parametrize(
    "changes, words",
    [
        ({}, "all_gathers between nodes"),
        ({"shard_size": 8}, "all_reduces between nodes"),
        ({"sharding": "DDP"}, "all_reduces between nodes"),
        ({"sharding": "ZERO_2"}, "reduce_scatters between nodes"),
        ({"sharding": "ZERO_1"}, "messages of gradients and updated parameters, after backward, between nodes"),
        ({"tensor": 8}, "messages of tensor parallelism inside the node"),
        ({"tensor": 8, "context": 2, "seq_len": 65536}, "messages of tensor and context parallelism between nodes"),
    ],
)
def test_messages_are_called_what_they_are_and_go_where_they_go(changes, words):
    """And they add up to what is exposed; a wait that two collectives share counts for both."""
    found = plan("8B", "dgx-h100", 16, **changes)
    assert words in found.speed.waits_s
    assert sum(found.speed.waits_s.values()) == pytest.approx(found.speed.parts_s["exposed communication"], rel=0.1)


def test_computation_comes_with_the_share_of_the_peak_that_it_reaches():
    assert time_in_words(made()) == ("computation: 60% of a step of 1.00 s, in which the GPU reaches 15% of its peak")


def test_memory_comes_first_where_it_does_not_fit():
    assert bottleneck(made()).startswith("computation")
    assert bottleneck(made(CAPACITY, CAPACITY)).startswith("may not fit: activations: 1.00 GiB of the peak's 1.00 GiB")


# -------------------------------------------------------------------------------------------------------------- advice

TOO_LARGE = {
    "DDP": setup_of("8B", "dgx-h100", 8, sharding="DDP"),
    "the logits": setup_of("8B", "dgx-h100", 8, micro_batch=8, seq_len=4096, recompute="full"),
    "activations": setup_of("8B", "dgx-h100", 16, micro_batch=4, seq_len=8192),
    "several micro-batches": setup_of("8B", "dgx-a100", 8, micro_batch=4, seq_len=8192, accumulation=4),
    "a small card": setup_of("8B", "cloud-25gbe", 4),
    "70B on one node": setup_of("70B", "dgx-h100", 8, recompute="full"),
}
SLOW = {
    "recomputed for nothing": setup_of("1B", "dgx-h100", 8, recompute="full"),
    "gathered for nothing": setup_of("1B", "dgx-h100", 64, seq_len=512, accumulation=4),
    "scores": setup_of("1B", "dgx-h100", 8, attention="math", seq_len=4096),
    "many small micro-batches": setup_of("1B", "dgx-a100", 8, accumulation=16, seq_len=512),
    "over a slow network": setup_of("1B", "cloud-25gbe", 16),
}


# Of these searches some take seconds each: the night has them all.
BY_DAY = {"several micro-batches", "a small card", "recomputed for nothing", "over a slow network"}
ALL = [name if name in BY_DAY else pytest.param(name, marks=pytest.mark.night) for name in TOO_LARGE | SLOW]


@cache
def planned(name: str) -> tuple[Plan, tuple[Advice, ...]]:
    before = figures_of((TOO_LARGE | SLOW)[name], every_block=False)
    return before, advise(before)


@pytest.mark.parametrize("name", ALL)
def test_every_advice_is_a_plan_that_shows_the_gain(name):
    before, found = planned(name)
    assert (before.fits == "yes") == (name in SLOW), before.memory.device_bytes
    assert found, "each of these can be helped"
    for advice in found:
        again = figures_of(advice.change.applied(before.setup))  # looked at in every block
        assert again.speed == advice.plan.speed and again.memory.device_bytes == advice.plan.memory.device_bytes
        assert again.fits == "yes"
        if name in SLOW:
            assert again.speed.tokens_per_s > (1 + LEAST_GAIN) * before.speed.tokens_per_s
            assert again.setup.world_size == before.setup.world_size


@pytest.mark.parametrize("name", ALL)
def test_the_cheapest_comes_first(name):
    prices = [a.change.price for a in planned(name)[1]]
    assert prices == sorted(set(prices))


@pytest.mark.parametrize("name", TOO_LARGE)
def test_what_costs_more_to_make_it_fit_is_faster(name):
    speeds = [a.plan.speed.tokens_per_s for a in planned(name)[1]]
    assert all(later > (1 + LEAST_GAIN) * sooner for sooner, later in pairwise(speeds))


@pytest.mark.parametrize("name", ALL)
def test_no_single_change_is_better(name):
    """None that costs less helps, and of those that cost as much as a piece of advice none is faster."""
    before, found = planned(name)
    changed = [
        (change, figures_of(after, every_block=False))
        for change in single_changes(before.setup)
        if (after := change.applied(before.setup))
    ]
    for change, after in changed:
        helps = after.fits == "yes" and (
            before.fits != "yes" or after.speed.tokens_per_s > (1 + LEAST_GAIN) * before.speed.tokens_per_s
        )
        if helps and change.world_size is None and (before.fits != "yes" or change.price != TRAINING):
            assert change.price >= found[0].change.price, change
            for advice in found:
                if advice.change.price == change.price and advice.plan.setup.world_size == before.setup.world_size:
                    assert after.speed.tokens_per_s <= advice.plan.speed.tokens_per_s, change


@pytest.mark.parametrize("name", TOO_LARGE | SLOW)
def test_a_change_keeps_the_global_batch_or_says_that_it_does_not(name):
    setup = (TOO_LARGE | SLOW)[name]
    sequences = lambda s: s.strategy.micro_batch * s.strategy.accumulation * s.data_ranks / s.strategy.context  # noqa: E731
    changed = [(change, change.applied(setup)) for change in single_changes(setup)]
    assert len([after for _, after in changed if after]) > 15
    for change, after in changed:
        if after and "global batch" not in change.note:
            assert sequences(after) == sequences(setup), change


def test_pairs_are_found_where_no_single_change_is_enough_or_as_cheap():
    before, (first, *_) = planned("activations")
    fields = {name for name, value in first.change.fields if value != getattr(before.setup.strategy, name)}
    assert "micro_batch" in fields and not fields <= {"micro_batch", "accumulation"}
    for pair in first.change.fields:
        alone = replace(first.change, fields=(pair,)).applied(before.setup)
        assert alone is None or figures_of(alone).fits != "yes", pair


@pytest.mark.parametrize("name", ["activations", "70B on one node", "gathered for nothing", "recomputed for nothing"])
def test_the_words_are_the_figures(name):
    before, (first, *_) = planned(name)
    held, ratio = first.plan.memory.device_bytes[1] / GIB, first.plan.speed.tokens_per_s / before.speed.tokens_per_s
    said = first.words.removeprefix(first.change.words(before.setup) + ": ")
    assert ("fits, " in said) == (name in TOO_LARGE)
    assert float(said.removeprefix("fits, ").split()[0]) == pytest.approx(held, rel=0.005)
    amount, unit = said.split(", ")[-1].split()[0], said.split()[-1]
    if unit == "fast":
        assert float(amount) == pytest.approx(ratio, rel=0.05) and ratio >= 2
    else:
        sign = {"slower": -1, "faster": 1}[unit]
        assert 1 + sign * float(amount.rstrip("%")) / 100 == pytest.approx(ratio, abs=0.01)


def test_another_training_is_the_last_resort_and_says_so():
    """Where all else needs more GPUs or takes most of the speed, and not where a flag is enough."""
    _, found = planned("70B on one node")
    assert found[-1].change.price == TRAINING and "trains adapters" in found[-1].words
    assert all(a.change.price != TRAINING for a in planned("DDP")[1])


def test_a_change_that_needs_another_is_found_with_it():
    """DDP can't offload; 70B on one node must."""
    (first, *_) = advise(figures_of(setup_of("70B", "dgx-h100", 8, sharding="DDP", recompute="full")))
    fields = dict(first.change.fields)
    assert fields["offload"] == "cpu" and fields["sharding"] not in ("DDP", "DDP+ZERO_1")


def test_of_more_gpus_the_fewest():
    before, found = planned("70B on one node")
    (more,) = [a for a in found if a.change.world_size]
    assert more.plan.setup.world_size > before.setup.world_size
    half = replace(more.change, world_size=more.change.world_size // 2).applied(before.setup)
    assert half is None or figures_of(half).fits != "yes"


def test_the_plan_of_an_api_call_has_the_advice_in_words():
    before, found = planned("DDP")
    assert plan_of(before.setup).advice == tuple(a.words for a in found)


def test_where_nothing_helps_nothing_is_advised():
    words = Shape.of("every word there is", ModelConfig(500_000_000, 8192, 1, 64, 8, 28_672, 2048))
    assert advise(figures_of(setup_of(words, "cloud-25gbe", 1))) == ()


def test_what_new_cards_can_do_is_offered_where_they_can():
    """Kernels of attention, products in 8 bits, hops beside products; an A100 has none of the former."""
    wanted = ({"attention": "flash-3"}, {"attention": "cudnn"}, {"products": "fp8", "gather": "fp8", "compile": True})
    for machine, able in (("dgx-h100", True), ("dgx-a100", False)):
        setup = setup_of("8B", machine, 8, seq_len=8192)
        offered = [(dict(c.fields), c.applied(setup)) for c in single_changes(setup)]
        for fields in wanted:
            (applied,) = [after for changed, after in offered if changed == fields]
            assert bool(applied) == able, (machine, fields)
    split = setup_of("70B", "dgx-h100", 64, tensor=8, seq_len=8192)
    assert any(dict(c.fields) == {"async_tensor": True} and c.applied(split) for c in single_changes(split))


def test_a_loss_that_saves_nothing_is_not_offered():
    found = {dict(c.fields).get("cross_entropy") for c in single_changes(setup_of("8B", "dgx-h100", 8))}
    assert found == {None, "whole", "compiled", "in-place", "chunked", "fused"}
