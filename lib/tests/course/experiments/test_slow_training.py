"""Lesson 22's helpers: a neighbour's copy brings the run back to the bit, and a wrong restore is seen."""

from functools import partial

import torch
import torch.distributed as dist
from lesson_answers import defined

from shardcourse.experiments import slow_training
from shardcourse.lessons.cells import code_cells
from shardcourse.lessons.folders import ROOT
from shardlab import launch


def cell(begins: str) -> str:
    import nbformat

    nb = nbformat.read(ROOT / "course" / "22_slow_links_and_lost_nodes.ipynb", as_version=4)
    return next(c.source for c in code_cells(nb) if begins in c.source)


def weights(restore, lost):
    save = defined(cell("def save_at_neighbour"), "save_at_neighbour", torch=torch, dist=dist, N=2)
    run = partial(slow_training.train_and_lose, save, restore, 0)
    return launch(run, 2, lost, device="cpu", stream=False)[0]


def test_the_neighbours_copy_brings_every_bit_back():
    restore = defined(cell("def restore"), "restore", torch=torch, dist=dist, N=2)
    undisturbed, n_bytes = weights(restore, None)
    assert torch.equal(weights(restore, 1)[0], undisturbed)
    assert n_bytes == 12 * slow_training.CONFIG.n_params // 2


def test_a_rank_that_does_not_go_back_changes_the_run():
    undisturbed, _ = weights(lambda *args: None, None)
    assert not torch.equal(weights(lambda *args: None, 1)[0], undisturbed)


def losses(steps):
    def stay(model, inner, n):
        pass

    def train(model, inner, n):
        for step in range(steps):
            slow_training.backward(model, 0, step)
            inner.step()
            inner.zero_grad()

    return slow_training.measured({"stay": stay, "train": train}, 0)


def test_training_alone_lowers_the_loss():
    found = launch(losses, 2, 4, device="cpu", stream=False)[0]
    assert found["train"][1] < found["stay"][1] - 0.1 and found["train"][0] > found["stay"][0]
