"""The material of lesson 11b: the simulated loss of time, the killed writer, and the small run that is saved."""

import math

import pytest
import torch

from shardcourse.experiments.killed_writer import loadable_after_kills
from shardcourse.experiments.lost_time import lost_share
from shardcourse.experiments.small_run import fingerprint, sharded, train
from shardlab import launch


def test_without_failures_only_the_saves_cost():
    assert lost_share(60, 600, 1e12) == pytest.approx(0.1)


def test_failures_cost_half_an_interval_each():
    """With free saves and rare failures, Young's tau / 2M."""
    assert lost_share(0, 600, 20_000, work_s=4e7) == pytest.approx(600 / 2 / 20_000, rel=0.06)


def test_many_failures_in_an_interval_cost_what_the_exact_formula_says():
    """Daly 2006 without restarts: M (e^((tau + C) / M) - 1) / tau - 1."""
    cost, tau, between = 200, 2000, 2000
    exact = between * (math.exp((tau + cost) / between) - 1) / tau - 1
    assert lost_share(cost, tau, between, work_s=2e7) == pytest.approx(exact, rel=0.05)


def test_a_writer_that_never_replaces_its_first_file_leaves_it_whole(tmp_path):
    def once(folder, step, model):
        if step == 0:
            torch.save(step, folder / "first.pt")

    def load(folder, model):
        return torch.load(folder / "first.pt")

    assert loadable_after_kills(once, load, tmp_path, times=2) == 2
    assert loadable_after_kills(lambda *_: None, load, tmp_path, times=1) == 0


def digests():
    model, optimizer = sharded()
    before = fingerprint(model, optimizer)
    losses = train(model, optimizer, 0, 2)
    with_states = fingerprint(model, optimizer)
    for state in optimizer.state.values():
        state["exp_avg"].to_local().mul_(2)
    return before, with_states, fingerprint(model, optimizer), losses


def test_the_fingerprint_and_the_losses_do_not_depend_on_the_number_of_ranks():
    two, three = (launch(digests, n, device="cpu", stream=False) for n in (2, 3))
    assert two[0] == two[1], "every rank has the same"
    assert two[0][0] == three[0][0] != two[0][1], "the same first weights; a step changes them"
    assert two[0][1] != two[0][2], "the states are in it"
    assert two[0][3] == pytest.approx(three[0][3], rel=1e-5)
