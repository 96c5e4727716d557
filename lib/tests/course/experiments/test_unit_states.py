"""The states of units that lesson 6a prints, and the moments of a measured step, agree with what torch holds."""

import pytest
import torch
from torch.distributed.fsdp import fully_shard

from shardcourse.experiments.measured_step import measure_step
from shardcourse.experiments.unit_states import unit_states
from shardlab import fsdp as ours
from shardlab import launch
from shardlab.model import Transformer, preset

CONFIG = preset("1M", n_layers=2)
ROOT = 4 * (2 * 256 * 128 + 128)
BLOCK = (4 * CONFIG.n_params - ROOT) // 2


def sharded(shard, **options):
    torch.manual_seed(0)
    model = Transformer(CONFIG)
    for block in model.blocks:
        shard(block, **options)
    return shard(model, **options)


def states_and_steps() -> tuple:
    states = []
    for options in ({}, {"reshard_after_forward": False}):
        model = sharded(ours.fully_shard, **options)
        states.append(unit_states(model, model.blocks))
    return states, [measure_step(sharded(fully_shard, **o)) for o in ({}, {"reshard_after_forward": False})]


@pytest.fixture(scope="module")
def found():
    return launch(states_and_steps, 2, device="cpu", stream=False)[0]


def test_states_of_units_by_default_and_without_resharding(found):
    freed, kept = found[0]
    assert freed == {
        "before the step": ". . .",
        "forward of block 0": "# # .",
        "forward of block 1": "# . #",
        "after forward": "# . .",
        "backward of block 1": "# + #",
        "backward of block 0": "# # .",
        "after backward": ". . .",
    }
    assert kept["after forward"] == "# # #" and kept["after backward"] == ". . ."


def test_a_measured_step_holds_whole_after_forward_what_the_states_say(found):
    (freed, kept), steps = found
    for states, step in zip((freed, kept), steps, strict=True):
        root, *blocks = states["after forward"].split()
        assert step.after_forward["unsharded"] == ROOT * (root == "#") + BLOCK * blocks.count("#")
        assert step.between["unsharded"] == 0
        assert step.after_backward["gradients"] == step.between["parameters"] == 2 * CONFIG.n_params
    assert [step.messages["all_gather"] for step in steps] == [5, 3]
    assert steps[0].sent_bytes - steps[1].sent_bytes == BLOCK  # two blocks, and half of each is another rank's


def test_a_measured_step_holds_two_of_the_largest_unit_and_of_the_root_at_most(found):
    outputs_gradients = ROOT - 4 * 256 * 128  # the embedding's gradient comes last
    assert found[1][0].whole_bytes == ROOT + outputs_gradients + 2 * BLOCK
