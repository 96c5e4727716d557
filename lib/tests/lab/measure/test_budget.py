"""A budget ends the run where its tensors no longer fit, and says what they were."""

import pytest
import torch
from torch import nn

from shardlab.launch import LaunchError, launch
from shardlab.measure.budget import MIB, MemoryBudget
from shardlab.measure.memory import MemoryTracker


def make():
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(256, 256, bias=False) for _ in range(4)))  # 1 MiB of parameters
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def step(model, optimizer):
    model(torch.ones(64, 256)).sum().backward()
    optimizer.step()


def measured_peak():
    model, optimizer = make()
    with MemoryTracker(model) as tracker:
        step(model, optimizer)
    return tracker.peak.peak_bytes


def test_a_budget_of_the_peak_fits_and_one_byte_less_does_not():
    peak = measured_peak()
    model, optimizer = make()
    with MemoryBudget(peak, model) as budget:
        step(model, optimizer)
    assert budget.peak.peak_bytes == peak
    model, optimizer = make()
    parts = r"the budget is .* MiB: parameters 1\.00"
    with pytest.raises(torch.OutOfMemoryError, match=parts), MemoryBudget(peak - 1, model):
        step(model, optimizer)


def test_the_error_calls_gradients_gradients():
    model, optimizer = make()
    with pytest.raises(torch.OutOfMemoryError, match=r"gradients 0\.[57]"), MemoryBudget(1.9 * MIB, model):
        step(model, optimizer)


def test_what_is_there_already_counts():
    model, _ = make()
    with pytest.raises(torch.OutOfMemoryError, match=r"live in other, and the budget"), MemoryBudget(MIB / 2, model):
        pass


def test_after_the_error_memory_is_counted_no_more():
    model, optimizer = make()
    with pytest.raises(torch.OutOfMemoryError), MemoryBudget(MIB + 1000, model):
        step(model, optimizer)
    step(model, optimizer)


def on_a_rank():
    model, optimizer = make()
    with MemoryBudget(MIB + 1000, model):
        step(model, optimizer)


def test_the_error_names_the_rank():
    with pytest.raises(LaunchError, match=r"rank \d: 1\.\d+ MiB are live in forward"):
        launch(on_a_rank, 2, stream=False)


def test_a_budget_of_nothing_is_refused():
    with pytest.raises(ValueError, match="more than 0 bytes"):
        MemoryBudget(0, nn.Linear(1, 1))
