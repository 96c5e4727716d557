"""Tensor parallelism's memory in closed form, beside what two CPU ranks measure under DTensor, to the byte."""

from contextlib import nullcontext
from functools import partial

import pytest
import torch
from test_plan_activations import (
    WIDE,
    Before,
    _dtype,
    _form,
    _initialised,
    assert_close,
    bytes_of,
    kept_by_a_gpt_block,
    measured,
    norm_of,
    predict_root,
    setup,
)
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, loss_parallel, parallelize_module

from shardlab import launch
from shardlab.measure.memory import MemoryTracker
from shardlab.model import ModelConfig
from shardplan import activations


def measure_parallel_head(at):
    """The head as torchtitan parallelizes it: a rank's logits are those of its part of the vocabulary, or all."""
    layout = Shard(-1) if at.strategy.loss_parallel else Replicate()
    mesh = init_device_mesh("cpu", (2,))
    head = nn.ModuleList([norm_of(at.shape), nn.Linear(at.shape.dim, at.shape.vocab_size, bias=False)])
    parallelize_module(
        _initialised(head, at.strategy.precision),
        mesh,
        {"1": ColwiseParallel(output_layouts=layout, use_local_output=at.strategy.loss_parallel is False)},
    )
    leaf, targets = torch.zeros(1, requires_grad=True), torch.zeros(_form(at)[:2], dtype=torch.int64)
    with MemoryTracker(head) as tracker:
        tracker.label("other", leaf, targets)
        with loss_parallel() if at.strategy.loss_parallel else nullcontext():
            logits = head[1](head[0](Before.apply(leaf, _form(at), _dtype(at.strategy.precision))))
            loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
            del logits
            loss.backward()
    return measured(tracker, scalars=4)


LONG = ModelConfig(1000, 24, 1, 2, 2, 40, 512), 1, 150


@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed"])
def test_a_loss_whose_logits_are_split_by_the_vocabulary(precision):
    """Backward is fullest with four copies of a rank's logits in fp32, where a loss of whole logits has three."""
    at = setup(*LONG, precision=precision, tensor=2, sequence_parallel=False)
    found = launch(partial(measure_parallel_head, at), 2)
    expected = predict_root(activations.head, at)
    for rank in found:
        assert_close(rank, expected)
    B, T, V = 1, 150, 1000 // 2
    assert 4 * 4 * B * T * V < expected.backward < 4.5 * 4 * B * T * V


@pytest.mark.night
@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed"])
def test_a_loss_of_logits_that_every_rank_gathers(precision):
    at = setup(*LONG, precision=precision, tensor=2, sequence_parallel=False, loss_parallel=False)
    expected = predict_root(activations.head, at)
    for rank in launch(partial(measure_parallel_head, at), 2):
        assert (rank.kept, rank.backward) == (expected.kept, expected.backward)
    assert expected.backward > 3 * 4 * 150 * 1000, "of the whole vocabulary"


def test_what_selective_recomputation_keeps_is_what_reduce_scatters_return():
    """torchtitan's list: every second product (query, value, gate, down), attention, two reduce_scatters; the input.

    Two gathered inputs, B T D each, are gathered again: kept, they were most of the difference to what others measured.
    """
    at = setup(*WIDE, precision="bf16-mixed", tensor=2, recompute="selective")
    B, T, D, H, K, E, F = 2, 24, 64, 8 // 2, 2 // 2, 8, 192 // 2
    products = B * T * (H * E + K * E + F) * 2 + B * T * D * 2  # down's result is whole: a sum over ranks is to come
    attention = B * T * H * E * 2 + B * H * T * 4
    scattered, the_input = 2 * B * (T // 2) * D * 2, B * (T // 2) * D * 2
    kept = bytes_of(activations.block(at, True).kept)
    assert kept == products + attention + scattered + the_input


def test_pointwise_recomputation_keeps_products_and_attention():
    """Korthikanti's 32 s b h a layer of GPT, less two norms' results (4) and gelu's (8): each is made again."""
    kept, made_again = (kept_by_a_gpt_block(recompute=how, norm_kernel="fused") for how in ("none", "pointwise"))
    (kept, sbh, _), (less, _, _) = kept, made_again
    assert (kept, less) == (32 * sbh, 20 * sbh)
