"""Logits that a training loop holds, log-probabilities by parts of the vocabulary, inputs kept in 8 bits."""

import pytest
import torch
from test_plan_activations import (
    LONG,
    WIDE,
    Before,
    _dtype,
    _form,
    _initialised,
    assert_close,
    bytes_of,
    measured,
    norm_of,
    predict_root,
    setup,
)
from torch import nn

from shardlab.measure.memory import MemoryTracker
from shardplan import activations, flops
from shardplan.speed import passes
from shardplan.speed.kernels import product_s, root_work


def measure(at, loss_of):
    """Measure the output layer, its loss and their backward. What `loss_of` returns beside the loss is held."""
    head = nn.ModuleList([norm_of(at.shape), nn.Linear(at.shape.dim, at.shape.vocab_size, bias=False)])
    head = _initialised(head, at.strategy.precision)
    leaf, targets = torch.zeros(1, requires_grad=True), torch.zeros(_form(at)[:2], dtype=torch.int64)
    with MemoryTracker(head) as tracker:
        tracker.label("other", leaf, targets)
        x = Before.apply(leaf, _form(at), _dtype(at.strategy.precision))
        loss, held = loss_of(head[1], head[0](x), targets, at)
        del x
        loss.backward()
        del held
    return measured(tracker, scalars=4)


def held(linear, x, targets, at):
    """Return the loss and the logits, as a loop that holds the model's output."""
    logits = linear(x).float()
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()), logits


@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed"])
def test_logits_that_the_loop_holds(precision):
    at = setup(*WIDE, precision=precision, cross_entropy="held")
    assert_close(measure(at, held), predict_root(activations.head, at))


def test_held_logits_are_four_bytes_each_until_backward_ends():
    whole, of_loop = (
        predict_root(activations.head, setup(*WIDE, precision="bf16-mixed", cross_entropy=loss))
        for loss in ("whole", "held")
    )
    B, T, V = 2, 24, 256
    assert of_loop.backward - whole.backward == 4 * B * T * V


def plain(linear, x, targets, at):
    """Return the loss as a plain loop computes it, and the logits, which that loop holds."""
    logits = linear(x)
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()), logits


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_plain_loss_keeps_logits_and_log_probabilities_in_their_own_dtype(precision):
    at = setup(*WIDE, precision=precision, cross_entropy="plain")
    assert_close(measure(at, plain), predict_root(activations.head, at))


def test_a_plain_loss_moves_as_torch_does():
    """log_softmax reads and writes; backward writes the loss's gradient, reads both, and writes the logits'."""
    at = setup(*WIDE, precision="bf16-mixed", cross_entropy="plain")
    loss = passes.head_passes(at)[1]
    logits = at.tokens * at.shape.vocab_size
    assert loss.n_bytes == (2 * 2 * logits, 4 * 2 * logits)


class ByVocabulary(torch.autograd.Function):
    """prime-rl's _ChunkedLogProbEntropyFn of 2026, without entropy: logits of a part of the vocabulary at a time."""

    @staticmethod
    def forward(ctx, x, w, temperature, parts, fp32):
        largest = torch.full((len(x), 1), float("-inf"))
        total = torch.zeros(len(x), 1)
        for part in w.chunk(parts):
            logits = _logits(x, part, fp32) * temperature
            shifted = logits - largest
            total = total + shifted.exp().sum(-1, keepdim=True)
            del logits, shifted
        ctx.save_for_backward(x, w, total)
        ctx.choices = temperature, parts, fp32
        return total.sum()

    @staticmethod
    def backward(ctx, gradient):
        (x, w, total), (temperature, parts, fp32) = ctx.saved_tensors, ctx.choices
        of_x, of_w = torch.zeros_like(x), torch.zeros_like(w)
        for part, of_part in zip(w.chunk(parts), of_w.chunk(parts), strict=True):
            logits = _logits(x, part, fp32) * temperature
            probabilities = torch.exp(logits - total)
            del logits
            of_logits = probabilities * gradient
            del probabilities
            of_x.add_(of_logits.to(x.dtype) @ part)
            of_part.add_(of_logits.to(x.dtype).t() @ x)
            del of_logits
        return of_x, of_w, None, None, None


def _logits(x, part, fp32):
    return x.float() @ part.float().t() if fp32 else (x @ part.t()).float()


def by_vocabulary(linear, x, targets, at):
    s = at.strategy
    x = x.flatten(0, 1)
    return ByVocabulary.apply(x, linear.weight, 0.5, s.cross_entropy_chunks, s.fp32_logits), None


@pytest.mark.parametrize("fp32", [False, True])
def test_log_probabilities_by_parts_of_the_vocabulary(fp32):
    """Within 5%: a part of the matrix, cast, comes and goes as well, which is small if there are many tokens."""
    on = {"precision": "bf16-mixed", "cross_entropy": "vocabulary", "cross_entropy_chunks": 25}
    at = setup(*LONG, **on, fp32_logits=fp32)
    found, expected = measure(at, by_vocabulary), predict_root(activations.head, at)
    assert_close(found, expected, rel=0.05)


def test_backward_makes_the_logits_again():
    """One more product of the output layer, in fp32 if it was so in forward. The gradients' products stay in bf16."""
    plain, again = (
        setup(*WIDE, precision="bf16-mixed", cross_entropy=loss, cross_entropy_chunks=4)
        for loss in ("chunked", "vocabulary")
    )
    (product,) = flops.head_products(again)
    assert flops.hardware_flops(again) - flops.hardware_flops(plain) == product.flops * again.strategy.accumulation
    fp32 = setup(*WIDE, precision="bf16-mixed", cross_entropy="vocabulary", cross_entropy_chunks=4, fp32_logits=True)
    longer = root_work(fp32, True, True).backward.products_s - root_work(again, True, True).backward.products_s
    assert longer == pytest.approx(product_s(fp32, product) - product_s(again, product))
    assert product_s(fp32, product.backward()[0]) == product_s(again, product.backward()[0])


def test_bytes_that_move_by_parts_of_the_vocabulary():
    """The operations of `ByVocabulary` and of the entropy, in fp32: 13 reads and writes of 4 bytes in forward."""
    at = setup(*WIDE, precision="bf16-mixed", cross_entropy="vocabulary", cross_entropy_chunks=4)
    loss = passes.head_passes(at)[1]
    logits = at.tokens * at.shape.vocab_size
    assert loss.n_bytes == (13 * 4 * logits, 50 * logits)


def test_transformer_engine_keeps_inputs_in_8_bits():
    """One copy for queries, keys and values, and one for gate and up. Attention keeps its result in 16 bits besides."""
    on = {"precision": "bf16-mixed", "compile": True, "products": "fp8"}
    kept = {
        eight: bytes_of(activations.block(setup(*WIDE, **on, inputs_in_8_bits=eight), False).kept)
        for eight in (False, True)
    }
    at = setup(*WIDE, **on)
    inputs = 2 * at.shape.dim + at.shape.hidden_dim  # the norms' results and that of the activation function
    assert kept[False] - kept[True] == at.tokens * (inputs * (2 - 1) - at.shape.q_dim)
