"""Corners of options and modules that a changed import brings: each is as with torch's, or refused by name."""

import sys
from functools import partial

import cloudpickle
import corners
import pytest
import torch
from corners import two_layers
from torch import nn
from torch.utils.checkpoint import checkpoint as torchs_checkpoint

from shardlab import launch
from shardlab.parallel.ddp import DDP
from shardlab.parallel.precision import MasterWeights
from shardlab.parallel.recompute import apply_activation_checkpointing, checkpoint
from shardlab.parallel.zero import ZeroRedundancyOptimizer

for module in (corners, sys.modules[__name__]):
    cloudpickle.register_pickle_by_value(module)


def test_masters_of_an_optimizer_for_matrices():
    p = nn.Parameter(torch.ones(4, 4, dtype=torch.bfloat16))
    optimizer = MasterWeights([p], torch.optim.Muon, lr=0.1)
    p.grad = torch.eye(4, dtype=torch.bfloat16)
    optimizer.step()
    assert (p != 1).any()


def torchs_words() -> list[str]:
    DDP(two_layers(), device_ids=None, output_device=None)
    model = two_layers()
    ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, parameters_as_bucket_view=True, lr=0.1)
    with pytest.raises(ValueError, match="rank 0: device_ids or output_device names"):
        DDP(two_layers(), device_ids=[0])
    return ["taken"]


def test_options_of_torchs_are_taken_or_refused_by_name():
    assert launch(torchs_words, 1) == [["taken"]]


def test_a_module_of_two_parents_is_checkpointed_once():
    shared = nn.Linear(4, 4)
    model = nn.Sequential(nn.Sequential(shared), nn.Sequential(shared))
    apply_activation_checkpointing(model, check_fn=lambda m: isinstance(m, nn.Linear))
    model(torch.ones(2, 4)).sum().backward()
    assert model[0][0] is model[1][0] is shared
    assert isinstance(shared.forward, partial)


@pytest.mark.parametrize("of", [checkpoint, torchs_checkpoint])
def test_a_checkpoint_that_compares_nothing(of):
    """The second call saves a tensor of another dtype in the place of the first one's; by default that is refused."""
    dtypes = [torch.float32, torch.float64] * 2

    def function(x):
        return (x.to(dtypes.pop(0)).sin()).sum()

    x = torch.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError):
        of(function, x, use_reentrant=False).backward()
    of(function, x, use_reentrant=False, determinism_check="none").backward()
    assert x.grad.tolist() == pytest.approx(x.cos().tolist())


def test_a_checkpoint_without_an_early_stop_is_torchs_alone():
    with pytest.raises(ValueError, match="early_stop=False"):
        checkpoint(torch.sin, torch.ones(2, requires_grad=True), use_reentrant=False, early_stop=False)
