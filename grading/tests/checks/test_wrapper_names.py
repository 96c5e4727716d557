"""Labs 6 and 8: a wrapper around a block, torch's or one's own, leaves the names by which weights are compared."""

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from grading.checks.lab6_profile import on_ranks as lab6
from grading.checks.lab8_capstone import job
from grading.checks.lab8_capstone import on_ranks as lab8


class Own(nn.Module):
    def __init__(self, block):
        super().__init__()
        self.block = block


def models_and_names():
    facts = job.draw(0)["2x4"]
    return {
        "lab6": (lambda: lab6.make_model(0, 2), lab6.whole),
        "lab8": (lambda: job.build_model(job.job_of(facts), 0), lambda model: dict(lab8.weights(model))),
    }


@pytest.mark.parametrize("lab", ["lab6", "lab8"])
@pytest.mark.parametrize("wrap", [Own, checkpoint_wrapper, lambda block: torch.compile(block, backend="eager")])
def test_weights_keep_their_names_in_a_wrapper(lab, wrap):
    make, named = models_and_names()[lab]
    model, names = make(), sorted(named(make()))
    model.blocks[1] = wrap(model.blocks[1])
    assert sorted(named(model)) == names == sorted(name for name, _ in make().named_parameters())
