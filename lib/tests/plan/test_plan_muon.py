"""Muon in a plan: states, temporary memory and messages are those of real ranks, with lesson 21's own optimizer."""

from dataclasses import replace
from functools import partial
from math import prod

import pytest
import torch
from lesson_answers import definitions

from shardcourse.experiments import whole_matrix_updates as small
from shardlab import launch
from shardlab.measure.memory import MemoryTracker
from shardlab.model import ModelConfig, Transformer, preset
from shardlab.text_batches import batch
from shardplan.api import setup_of
from shardplan.memory import optimizing, states
from shardplan.memory.live import total
from shardplan.planned_job import Setup
from shardplan.shape import Experts, Shape
from shardplan.speed import speed_plan
from shardplan.speed.muon import messages_s, newton_schulz_s
from shardplan.stage_parameters import stages
from shardplan.strategy import MUON_WAYS, Strategy
from shardplan.traffic import sends
from shardplan.traffic.muon import matrices, products
from shardsim.machines import machine

LESSON = {"all-at-once": "all_at_once", "every-rank": "every_rank", "one-owner": "one_owner"}
# A wide one, whose largest matrix is no square
WIDE = ModelConfig(256, 64, 2, 4, 2, 192, 256)


def planned(ranks: int, config: ModelConfig = small.CONFIG, **strategy) -> Setup:
    options = {"precision": "fp32", "optimizer": "muon", "optimizer_kernel": "forloop", "seq_len": 32} | strategy
    return Setup(Shape.of("small", config), machine("dgx-h100"), ranks, Strategy(**options))


@pytest.fixture(scope="module")
def lesson():
    return definitions("21_optimizers_of_whole_matrices.ipynb", seed=1, torchs=None)


@pytest.mark.parametrize("way", MUON_WAYS)
def test_ranks_send_what_is_planned(lesson, way):
    """All ranks together, to the byte; a rank that owns nothing sends less than one that does."""
    make = partial(lesson["ShardedMuon"], way=lesson[LESSON[way]], dtype=torch.bfloat16)
    ranks = launch(small.train, 4, make, 1, 1, device="cpu", stream=False)
    setup = planned(4, muon_way=way)
    due = [s for s in sends(setup) if "Muon" in s.of]
    assert sum(rank.sent for rank in ranks) == pytest.approx(4 * sum(s.bytes for s in due), rel=1e-12)
    kinds = {kind: sum(s.times for s in due if s.kind == kind) for kind in {s.kind for s in due}}
    assert ranks[0].kinds == kinds
    assert ranks[0].state_bytes == states.optimizer_states(setup, stages(setup)[0])[0].n_bytes


def _states_and_temporaries(config: ModelConfig) -> tuple[float, float]:
    """Return the bytes of both optimizers' states, and of what their steps make and free again."""
    model, data = Transformer(config), batch(0, 0, 0, 1, global_batch=1, seq_len=32)
    mine = small.matrices(model)
    others = [p for p in model.parameters() if all(p is not q for q in mine)]
    muon, adamw = torch.optim.Muon(mine), torch.optim.AdamW(others, foreach=False)
    for _ in range(2):
        model(*data).backward()
        with MemoryTracker(model, muon) as tracker:
            muon.step()
            adamw.step()
    kept = [t for o in (muon, adamw) for state in o.state.values() for t in state.values()]
    return sum(t.nbytes for t in kept), tracker.peak.by_category()["temporaries"]


@pytest.mark.parametrize("config", [small.CONFIG, WIDE])
def test_one_rank_holds_what_is_planned(config):
    """torch.optim.Muon beside torch.optim.AdamW, to the byte."""
    setup = planned(1, config, sharding="NONE")
    stage = stages(setup)[0]
    states_bytes, temporary = launch(_states_and_temporaries, 1, config, device="cpu", stream=False)[0]
    assert total(states.optimizer_states(setup, stage)) == states_bytes
    assert total(optimizing.temporaries(setup, stage, on_gpu=False)) == temporary


def test_flops_are_those_of_the_lesson():
    setup = planned(1, sharding="NONE")
    found = sum(m.times * sum(p.flops for p in products(m)) for m in matrices(setup, stages(setup)[0]))
    assert found == sum(map(small.newton_schulz_flops, small.shapes(small.CONFIG)))


def test_at_full_size_as_the_lesson_computes_it():
    """64 H100s: an all_to_all of a 64th of the matrices' bytes each way, and a 64th of the work."""
    setup = setup_of("8B", "dgx-h100", 64, optimizer="muon")
    stage = stages(setup)[0]
    all_of_it = newton_schulz_s(replace(setup, strategy=replace(setup.strategy, muon_way="every-rank")), stage)
    assert newton_schulz_s(setup, stage) == pytest.approx(all_of_it / 64)
    n_bytes = 2 * sum(prod(shape) for shape in small.shapes(preset("8B")))
    (exchange,) = [s for s in sends(setup) if s.kind == "all_to_all"]
    assert exchange.full_bytes == n_bytes / 64
    assert messages_s(setup, stage) > 2 * n_bytes / 64 * (56 / 64) / 50e9  # seven of eight targets are on other nodes


def test_more_ranks_than_matrices_wait_for_the_largest():
    setups = [setup_of("8B", "dgx-h100", n, optimizer="muon") for n in (512, 1024)]
    once, twice = (newton_schulz_s(setup, stages(setup)[0]) for setup in setups)
    assert once == twice
    assert speed_plan(setups[0]).waits_s["Muon's messages, after backward, between nodes"] > 0


def test_each_expert_has_a_matrix_of_its_own():
    """Its products are those of (W, D), not of all experts' rows; ranks with the same experts share it."""
    shape = replace(Shape.of("mixture", WIDE), experts=Experts(8, 2, 96))
    setup = Setup(shape, machine("dgx-h100"), 8, Strategy(optimizer="muon", expert=4, seq_len=32))
    found = {m.weight.name: m for m in matrices(setup, stages(setup)[0])}
    assert found["experts.up.weight"].sides == (64, 96) and found["experts.up.weight"].experts == 2
    assert found["attention.key.weight"].sides == (32, 64) and found["attention.key.weight"].experts == 1
    assert {s.group.name: s.group.size for s in sends(setup) if "Muon" in s.of} == {"shard": 8, "same experts": 2}
    assert "output.weight" not in found and "embedding.weight" not in found and "router.weight" in found
