"""Lesson 18's own code: bytes by formula, the arithmetic of one process, and what breaks which format."""

import importlib.util

import pytest
import torch
from lesson_answers import definitions

from shardcourse.experiments import eight_bit_weights as small
from shardlab import launch


@pytest.fixture(scope="module")
def lesson():
    return definitions("18_eight_bits_on_the_wire.ipynb", seed=1)


@pytest.mark.parametrize("scale", ["TensorScale", "RowScale"])
def test_four_ranks_compute_what_one_process_does_and_send_what_the_formula_says(lesson, scale):
    format, steps = lesson[scale](), 3
    ranks = launch(lesson["train_sharded"], 4, format, steps, device="cpu", threads_per_rank=1, stream=False)
    losses, weights = launch(lesson["train_alone"], 1, format, steps, device="cpu", threads_per_rank=1, stream=False)[0]
    assert losses == [loss for step in zip(*(r[0] for r in ranks), strict=True) for loss in step]
    for name, p in weights.items():
        torch.testing.assert_close(ranks[0][1][name], p.detach(), rtol=0, atol=1e-3 * 3e-3)
    gathers, sent = ranks[0][2]["all_gather"]
    assert (gathers, sent) == (5, lesson["predicted_bytes"](format))
    assert ranks[0][2].get("all_reduce", (0, 0))[0] == (28 if scale == "TensorScale" else 0)


def test_another_rounding_is_noticed(lesson):
    """The test above would find one process that rounds in another way."""
    bf16, row = (launch(lesson["train_alone"], 1, f, 1, device="cpu", threads_per_rank=1, stream=False)[0][0]
                 for f in (None, lesson["RowScale"]()))  # fmt: skip
    assert all(a != b for a, b in zip(bf16, row, strict=True))


def test_a_grown_row_changes_no_bit_of_the_function():
    model = small.model(0)
    before = small.loss_with(model, torch.clone, 0)
    small.grow_a_row(model, 2.0**20)
    assert small.loss_with(model, torch.clone, 0) == before
    assert model.blocks[0].feed_forward.up.weight[7].abs().max() > 2**14


def test_a_large_row_rounds_to_zero_what_shares_its_scale():
    """A scale of the tensor loses the 383 other rows. A scale of a row loses the shrunk column of `down` only."""
    model = small.model(0)
    small.grow_a_row(model, 2.0**20)
    by_tensor, by_row = ((lambda w, dim=dim: _scaled(w, dim)) for dim in ((0, 1), 1))
    assert small.rounded_to_zero(model, by_tensor) == (383, 1)
    assert small.rounded_to_zero(model, by_row) == (0, 1)
    assert small.rounded_to_zero(small.model(0), by_tensor) == (0, 0)


def _scaled(w, dim):
    scale = w.abs().amax(dim, keepdim=True) / 448
    return small.e4m3(w / scale) * scale


def test_four_bits_are_the_eight_numbers_and_the_nearest():
    x = torch.tensor([0.24, 0.26, -0.9, 2.4, 2.6, 3.6, 4.9, 5.1, -99.0])
    assert small.e2m1(x).tolist() == [0, 0.5, -1, 2, 3, 4, 4, 6, -6]
    grid = torch.tensor([2**-9, 17.0, 448, 1e9])
    assert small.e4m3(grid).tolist() == [2**-9, 16, 448, 448]


def test_a_power_of_two_is_rounded_up():
    assert small.power_of_two(torch.tensor([1.0, 1.1, 0.4, 0.0])).tolist() == [1, 2, 0.5, 0]


def test_weights_without_a_master_are_rounded_after_each_step():
    model, losses = small.train(0, 2, 1e-3, stored=small.e4m3)
    weight = model.blocks[0].attention.query.weight
    assert torch.equal(weight, small.e4m3(weight)) and len(losses) == 2
    master = small.train(0, 2, 1e-3)[0].blocks[0].attention.query.weight
    assert not torch.equal(master, small.e4m3(master))


@pytest.mark.night
@pytest.mark.skipif(not importlib.util.find_spec("torchao"), reason="needs torchao")
def test_torchao_sends_codes_and_one_message_of_scales():
    found = launch(small.torchao_messages, 2, device="cpu", stream=False)[0]
    codes = ("all_gather", "Byte", 2 * 64 * 128 + 2 * 64)
    gradients = ("reduce_scatter", "BFloat16", 2 * (2 * 64 * 128 + 64))
    assert found["a step"] == 2 * [("all_reduce", "Float", 4)] + [codes, gradients]
    assert found["scales made after the step"] == [("all_reduce", "Float", 8)]
    assert found["the next step"] == [codes, gradients]
