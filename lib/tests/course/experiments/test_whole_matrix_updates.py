"""Lesson 21's own code: three ways equal one process in fp32, send what the formulas say, and halve AdamW's states."""

from functools import partial

import pytest
import torch
from lesson_answers import definitions

from shardcourse.experiments import whole_matrix_updates as small
from shardlab import launch
from shardlab.model import Transformer

N, STEPS = 4, 2
FORMULAS = {"every_rank": N - 1, "one_owner": 2 * (N - 1) / N, "all_at_once": 2 * (N - 1) / N}
KINDS = {"every_rank": {"all_gather": 14}, "one_owner": {"gather": 14, "scatter": 14}, "all_at_once": {"all_to_all": 2}}


@pytest.fixture(scope="module")
def lesson():
    return definitions("21_optimizers_of_whole_matrices.ipynb", seed=1, torchs=None)


@pytest.fixture(scope="module")
def alone(lesson):
    def train(newton_schulz):
        torch.optim._muon._zeropower_via_newtonschulz = lambda update, *_: newton_schulz(update)
        return small.train(partial(torch.optim.Muon, **lesson["HYPER"]), 1, STEPS)

    return launch(train, 1, lesson["newton_schulz"], device="cpu", stream=False)[0]


@pytest.mark.parametrize("way", FORMULAS)
def test_a_way_computes_what_one_process_does_and_sends_what_the_formula_says(lesson, alone, way):
    make = partial(lesson["ShardedMuon"], way=lesson[way], dtype=torch.float32)
    ranks = launch(small.train, N, make, 1, STEPS, device="cpu", stream=False)
    for rank in ranks:
        assert small.difference(rank.changes, alone.changes) < STEPS * lesson["A"] ** 5 * N * 2.0**-24
    numbers = sum(change.numel() for change in alone.changes)
    assert sum(rank.sent for rank in ranks) == FORMULAS[way] * 4 * numbers
    assert ranks[0].kinds == KINDS[way]
    assert ranks[0].state_bytes == 4 * numbers / N


def test_another_momentum_is_noticed(lesson, alone):
    make = partial(lesson["ShardedMuon"], way=lesson["every_rank"], dtype=torch.float32, momentum=0.9)
    found = launch(small.train, N, make, 1, STEPS, device="cpu", stream=False)[0]
    assert small.difference(found.changes, alone.changes) > 1e-2


def test_newton_schulz_brings_singular_values_near_one(lesson):
    torch.manual_seed(0)
    for shape in ((32, 64), (64, 32)):
        values = torch.linalg.svdvals(lesson["newton_schulz"](torch.randn(shape)))
        assert values.min() > 0.6 and values.max() < 1.25


def test_shapes_and_flops_are_those_of_the_model():
    model = Transformer(small.CONFIG)
    assert [tuple(p.shape) for p in small.matrices(model)] == small.shapes(small.CONFIG)
    assert small.newton_schulz_flops((4, 8)) == small.newton_schulz_flops((8, 4)) == 5 * (2 * 4 * 4 * 8 * 2 + 2 * 4**3)
