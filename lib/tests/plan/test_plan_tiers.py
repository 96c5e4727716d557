"""The table of GPU tiers is what the planner writes today, and each tier fits on the cards that it is for."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from shardlab import tier as tier_file
from shardlab.model import preset
from shardlab.tier import TIERS, Card, choose, why_not
from shardplan import tiers
from shardplan.memory import memory_plan
from shardsim.hardware import GPUS

NAMES = tuple(tiers.PLACES)


def test_the_table_is_what_the_planner_writes():
    """If this fails, run `python -m shardplan.tiers` and read what it changed: labs state these budgets."""
    assert json.loads(Path(tier_file.__file__).with_name(tier_file.TABLE).read_text()) == tiers.table()


@pytest.mark.parametrize("name", NAMES)
def test_right_programs_fit_the_budget_and_the_usual_wrong_ones_do_not(name):
    tier, place, model = TIERS[name], tiers.PLACES[name], tiers.chosen(name)
    budget = tier.budget_mib * tiers.MIB

    def peak(**program):
        return memory_plan(tiers.setup(place, model, **program)).peak.n_bytes

    assert model.config == tier.model
    assert peak() < 0.95 * budget, "FSDP by block fits"
    assert peak(wrap="whole") > 1.05 * budget, "one unit does not"
    assert peak(sharding="DDP") > 1.05 * budget, "nor does DDP"
    assert peak(depth=2) > 1.2 * budget, "nor does twice the depth"
    assert peak(depth=2, recompute="full") < 0.9 * budget, "but with checkpointing it does"


@pytest.mark.parametrize("name", NAMES)
def test_lab_4_fits_on_the_smallest_card_and_a_larger_model_would_not(name):
    place, model = tiers.PLACES[name], tiers.chosen(name)
    there = GPUS[place.card].memory_bytes
    assert TIERS[name].memory_bytes <= there
    for program in ({}, {"depth": 2}, {"depth": 2, "recompute": "full"}):
        plan = memory_plan(tiers.setup(place, model, **program))
        assert tiers.gpu_bytes(place, plan) <= (1 - tiers.SPARE) * there
    larger = tiers.MODELS[: tiers.MODELS.index(model)]
    assert all(tiers.needed_bytes(name, m) > there or _room(name, m) < tiers.NARROWEST for m in larger)


def _room(name: str, model: tiers.Model) -> float:
    low, high = tiers.budget_range(name, model)
    return high / low


def test_ddp_of_the_deeper_model_would_not_fit_on_any_tier_for_40_gb():
    """So lab 4's losses are compared with those of checkpointed FSDP."""
    for name in ("gpu4", "gpu8"):
        place = tiers.PLACES[name]
        plan = memory_plan(tiers.setup(place, tiers.chosen(name), depth=2, sharding="DDP"))
        assert plan.peak.n_bytes > GPUS[place.card].memory_bytes


def test_repeated_heads_are_in_the_plan():
    """A grouped model trained in float32 holds as much as one with as many key and value heads as query heads."""
    place, model = tiers.PLACES["gpu4"], tiers.chosen("gpu4")
    grouped = memory_plan(tiers.setup(place, model)).peak.n_bytes
    on_cpu = memory_plan(tiers.setup(place, model), on_gpu=False).peak.n_bytes
    c, tokens = model.config, model.micro_batch * model.seq_len
    repeated = 2 * 4 * tokens * (c.n_heads - c.n_kv_heads) * c.head_dim * c.n_layers
    assert grouped - on_cpu >= 0.9 * repeated
    assert replace(c, n_kv_heads=c.n_heads) != c == preset("1B")


@pytest.mark.parametrize(
    "card", ["T4", "A10", "L4", "RTX-4090", "A100-40GB", "A100-80GB", "H100-80GB", "H200-141GB", "B200-180GB"]
)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 6, 8])
def test_every_card_has_a_tier_with_as_many_of_its_gpus_as_there_are_tiers_for(card, n):
    gpu = GPUS[card]
    cards = [Card(gpu.name, gpu.memory_bytes, gpu.capability)] * n
    name, _ = choose(cards)
    used = max(k for k in (1, 2, 4, 8) if k <= n)
    assert TIERS[name].gpus == used and not why_not(TIERS[name], cards)
    is_large = gpu.memory_bytes >= GPUS["A100-40GB"].memory_bytes and used >= 4
    assert name == f"gpu{used}" + ("-16gb" if used >= 4 and not is_large else "")
