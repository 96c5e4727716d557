"""What lesson 8 measures of a step: blocks recomputed or not, counted as arithmetic says."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from shardcourse.experiments import recomputing
from shardlab.model import Transformer, preset

CONFIG, TOKENS = preset("1M", n_layers=4), torch.arange(32).view(2, 16)
checkpointed = partial(checkpoint, use_reentrant=False)


def model() -> Transformer:
    torch.manual_seed(0)
    return Transformer(CONFIG)


def test_blocks_recomputed_cost_flops_and_save_activations():
    none = recomputing.step_cost(model(), TOKENS, TOKENS)
    costs = {
        n: recomputing.step_cost(recomputing.with_blocks(model(), checkpointed, n), TOKENS, TOKENS) for n in (1, 2)
    }
    assert costs[1].activation_bytes < costs[2].activation_bytes < none.activation_bytes < none.peak_bytes
    assert costs[1].percent_more_flops(none) > 20
    assert costs[1].percent_more_flops(none) == pytest.approx(2 * costs[2].percent_more_flops(none))


def test_gradients_are_those_of_the_plain_model():
    plain, again = (
        recomputing.gradients(m, TOKENS, TOKENS) for m in (model(), recomputing.with_blocks(model(), checkpointed))
    )
    assert all(map(torch.equal, plain, again))


def test_kept_bytes_are_what_autograd_keeps_without_parameters():
    x = torch.zeros(8, 16, requires_grad=True)
    assert recomputing.kept_bytes(nn.Linear(16, 4), x) == x.nbytes
    assert recomputing.kept_bytes(nn.Sequential(nn.Linear(16, 4), nn.Tanh()), x) == x.nbytes + 8 * 4 * 4
