"""What lessons 4 and 5 measure with: a model in groups, a step that sleeps, and the outcome of a launch."""

import pytest
import torch
import torch.distributed as dist

from shardcourse.experiments.block_groups import group_blocks
from shardcourse.experiments.measured_training import outcome
from shardcourse.experiments.slept_steps import slept_step
from shardcourse.experiments.small_fsdp import by_blocks
from shardlab.model import Transformer, preset


def test_groups_of_blocks_compute_what_the_blocks_do():
    torch.manual_seed(0)
    model, tokens = Transformer(preset("1M")), torch.arange(16)[None]
    before = model(tokens, tokens).item()
    assert len(group_blocks(model, 2).blocks) == 2
    assert model(tokens, tokens).item() == before
    with pytest.raises(ValueError, match="2 blocks do not divide into 3 groups"):
        group_blocks(model, 3)


def test_a_slept_step_takes_as_long_as_its_blocks_sleep():
    step = slept_step(by_blocks, 2, "10 Gb/s, 10 us", forward_ms=5, backward_ms=10)
    slept = [s.end_s - s.start_s for s in step.lane("compute") if s.unit.startswith("blocks.")]
    assert sum(s > 0.0024 for s in slept) >= 8  # a sleep after one that ended late may be half as long
    assert step.duration_s > 4 * 0.015
    assert not any(s.unit.startswith("bucket") for s in step.spans)


def test_the_outcome_is_a_value_or_the_first_line_of_an_error():
    def fail():
        raise ValueError("no such rank")

    assert outcome(dist.get_world_size, 2, device="cpu", stream=False) == "2"
    assert outcome(fail, 2, device="cpu", stream=False).endswith("raised ValueError: no such rank")
