"""Fine-tuning as Hugging Face's libraries do it: the closed form beside what a MemoryTracker sees on a CPU."""

import pytest
import torch
from test_plan_activations import (
    WIDE,
    Before,
    _dtype,
    _form,
    _initialised,
    assert_close,
    measure_block,
    measured,
    norm_of,
    predict_block,
    predict_root,
    setup,
)
from torch import nn

from shardlab.measure.memory import MemoryTracker
from shardplan import activations, flops
from shardplan.api import setup_of
from shardplan.stage_parameters import stages


@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed"])
@pytest.mark.parametrize("targets", ["all", "attention", "query-value"])
@pytest.mark.parametrize("dropout", [False, True])
def test_adapters_of_some_layers_with_dropout(targets, dropout, precision):
    """To the byte: with dropout each adapter keeps an input of its own and a mask."""
    at = setup(*WIDE, precision=precision, lora_rank=8, lora_targets=targets, lora_dropout=dropout)
    assert measure_block(at) == predict_block(at)


@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed"])
def test_a_loss_of_shifted_logits(precision):
    """The logits in fp32, their copy without the last position, and log-probabilities: three copies in forward."""
    at = setup(*WIDE, precision=precision, cross_entropy="shifted")
    expected = predict_root(activations.head, at)
    assert_close(measure_shifted_head(at), expected)
    B, T, V = 2, 24, 256
    assert expected.forward > 4 * B * V * (T + 2 * (T - 1))


def measure_shifted_head(at):
    head = nn.ModuleList([norm_of(at.shape), nn.Linear(at.shape.dim, at.shape.vocab_size, bias=False)])
    head = _initialised(head, at.strategy.precision)
    leaf, targets = torch.zeros(1, requires_grad=True), torch.zeros(_form(at)[:2], dtype=torch.int64)
    with MemoryTracker(head) as tracker:
        tracker.label("other", leaf, targets)
        loss = _hugging_face(head, Before.apply(leaf, _form(at), _dtype(at.strategy.precision)), targets)
        loss.backward()
    return measured(tracker, scalars=4)


def _hugging_face(head, x, targets):
    """transformers 4.40, LlamaForCausalLM.forward, from the last hidden states on."""
    logits = head[1](head[0](x))
    logits = logits.float()
    shift_logits = logits[..., :-1, :].contiguous()
    return nn.functional.cross_entropy(shift_logits.view(-1, logits.shape[-1]), targets[..., 1:].reshape(-1))


def test_peft_counts_the_same_adapters():
    """r = 8 on query and value of Llama 2 7B trains 4,194,304 parameters, as peft's print_trainable_parameters says."""
    at = setup_of("llama-2-7b", "RTX-4090", 1, sharding="NONE", lora_rank=8, lora_targets="query-value")
    (stage,) = stages(at)
    assert sum(w.numel for w in stage.weights if w.trained) == 4_194_304 == 32 * 2 * 8 * (4096 + 4096)


def test_products_of_fewer_adapters_are_fewer():
    every, two = (
        flops.model_flops(setup_of("llama-2-7b", "dgx-h100", 8, lora_rank=8, lora_targets=targets))
        for targets in ("all", "query-value")
    )
    trained = 8 * (4 * (4096 + 4096) + 3 * (4096 + 11_008)) - 8 * 2 * (4096 + 4096)
    assert every - two == 6 * 32 * 2048 * trained


@pytest.mark.parametrize("card", ["T4", "V100-32GB"])
def test_a_card_without_bf16_refuses_it_and_says_fp16(card):
    with pytest.raises(ValueError, match="has no bf16.*precision='fp16-autocast'"):
        setup_of("1B", card, 1, sharding="NONE", precision="bf16-autocast")
    assert setup_of("1B", card, 1, sharding="NONE").strategy.precision == "fp16-mixed"
