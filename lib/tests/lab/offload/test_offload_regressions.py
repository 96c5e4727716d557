"""Regressions of the optimizers that offload or shard: each case behaves as under torch's, or is refused by name."""

from functools import partial
from tempfile import gettempdir

import pytest
import torch
from torch import nn
from two_layers import backward, offloaded_sgd, sharded_sgd, two_layers

from shardlab import fsdp as ours
from shardlab import launch
from shardlab.cpu_offload_optimizer import CPUOffloadOptimizer
from shardlab.ddp import DDP
from shardnext.file_offload import FileOffloadOptimizer


def largest_gradient(make) -> float:
    optimizer = make(model := two_layers())
    backward(model)
    return float(optimizer.clip_grad_norm_(1.0, "inf"))


def test_the_largest_norm_may_be_asked_for_by_name():
    model = two_layers()
    model(torch.ones(2, 4)).sum().backward()
    expected = float(nn.utils.clip_grad_norm_(model.parameters(), 1.0, "inf"))
    assert [launch(largest_gradient, 1, make)[0] for make in (offloaded_sgd, sharded_sgd)] == [expected] * 2


def clipped(layout) -> float:
    model = two_layers()
    ours.fully_shard(model, layout=layout)
    optimizer = CPUOffloadOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    backward(model)
    return float(optimizer.clip_grad_norm_(0.5))


def test_the_norm_is_that_of_all_ranks_under_either_layout():
    per_parameter, flat = launch(clipped, 2, ours.PerParameter), launch(clipped, 2, ours.FlatParameter)
    assert per_parameter[0] == per_parameter[1] == pytest.approx(flat[0])
    assert flat[0] == flat[1]


def changes_under_ddp(build, view) -> list[float]:
    """Of each parameter in a step, alone; DDP comes first, and so do its hooks."""
    model = DDP(two_layers(), gradient_as_bucket_view=view)
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = build(model.parameters(), lr=0.1)
    backward(model)
    optimizer.step()
    return [float((p.detach() - old).abs().sum()) for p, old in zip(model.parameters(), before, strict=True)]


@pytest.mark.parametrize("view", [False, True])
def test_a_gradient_that_left_for_the_host_does_not_come_back(view):
    offload = partial(CPUOffloadOptimizer, optimizer_class=torch.optim.SGD)
    assert launch(changes_under_ddp, 1, offload, view) == launch(changes_under_ddp, 1, torch.optim.SGD, view)


def clipped_in_float64() -> float:
    """Five rows on four ranks: the last one holds nothing."""
    model = two_layers(torch.float64, width=5)
    ours.fully_shard(model)
    optimizer = CPUOffloadOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    backward(model, 1.0, torch.float64, width=5)
    return float(optimizer.clip_grad_norm_(0.5))


def test_a_rank_without_rows_sends_the_others_dtype():
    assert len(set(launch(clipped_in_float64, 4))) == 1


def test_a_file_of_states_takes_no_more_parameters_and_none_that_can_not_be_cut():
    a, b = nn.Parameter(torch.ones(200)), nn.Parameter(torch.ones(200))
    optimizer = FileOffloadOptimizer([a], torch.optim.AdamW, gettempdir())
    with pytest.raises(RuntimeError, match="give all parameters at once"):
        optimizer.add_param_group({"params": [b]})
    optimizer = FileOffloadOptimizer([a, b.requires_grad_(False)], torch.optim.AdamW, gettempdir())
    for p in (a, b.requires_grad_(True)):
        p.grad = torch.ones(200)
        optimizer.step()
        assert (p != 1).all()
    with pytest.raises(ValueError, match=r"\[3, 2\] is not contiguous"):
        FileOffloadOptimizer([nn.Parameter(torch.ones(2, 3).t())], torch.optim.AdamW, gettempdir())


def test_zero_grad_drops_gradients_that_are_on_the_host_already():
    """So the step changes nothing, and the next gradient is not added to the dropped one."""
    p = nn.Parameter(torch.ones(3))
    optimizer = CPUOffloadOptimizer([p], torch.optim.SGD, lr=1.0)
    p.sum().backward()
    optimizer.zero_grad()
    optimizer.step()
    assert p.tolist() == [1.0, 1.0, 1.0]
    p.sum().backward()
    optimizer.step()
    assert p.tolist() == [0.0, 0.0, 0.0]
