"""What lesson 8 predicts: the tracker agrees with the peak, and the tables say what the plans do."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from shardcourse.experiments.recomputing import step_cost, with_blocks
from shardcourse.experiments.recomputing_planned import (
    choices_table,
    largest_terms,
    planned_choices,
    planned_peak_bytes,
)
from shardlab.model import Transformer, preset

TOKENS = torch.arange(32).view(2, 16)


def test_the_planner_says_what_the_tracker_sees():
    model = Transformer(preset("1M"))
    planned = planned_peak_bytes(model, TOKENS, recompute="full")
    recomputed = with_blocks(model, lambda forward, *args: checkpoint(forward, *args, use_reentrant=False))
    assert planned == pytest.approx(step_cost(recomputed, TOKENS, TOKENS).peak_bytes, rel=1e-3)


def test_a_choice_that_recomputes_is_smaller_and_slower():
    plans = planned_choices("8B", 8, {"none": {}, "full": {"recompute": "full"}}, seq_len=8192)
    low, high = plans["full"], plans["none"]
    assert low.memory.device_bytes < high.memory.device_bytes
    assert low.speed.tokens_per_s < high.speed.tokens_per_s
    first, *lines = choices_table(plans).splitlines()
    assert "GiB" in first and [line.split()[0] for line in lines] == ["none", "full"]
    assert [line.split()[2] for line in lines] == [plan.fits for plan in plans.values()] == ["no", "yes"]


def test_the_largest_terms_of_a_long_context_are_logits():
    lines = largest_terms("8B", 64, 131_072, recompute="full").splitlines()
    assert len(lines) == 5 and "B T V" in lines[1]
    assert "B T V" not in largest_terms("8B", 64, 131_072, recompute="full", cross_entropy="fused")
