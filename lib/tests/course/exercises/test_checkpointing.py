"""The exercise of lesson 8a: the right answer passes, and each wrong one is told what is wrong with it."""

import pytest
import torch
from lesson_answers import answer, defined
from torch.autograd.graph import saved_tensors_hooks

from shardcourse.exercises.checkpointing import verdict

RIGHT = answer("08a_activation_checkpointing.ipynb", "def recomputed")
GRAPH_STAYS = RIGHT.replace("= t.detach()", "= t\n        return t")
WRONG = {  # (what is altered, by what) -> what the reader is told
    ("return block(*args)", "block(*args)"): "returns nothing yet",
    ("with saved_tensors_hooks(pack, unpack):", "if True:"): "Backward does not run the block again",
    ("with saved_tensors_hooks(pack, unpack):", "with torch.no_grad():"): "does not require a gradient",
    ("return tensors.pop(number)", "return tensors.clear() or t"): "NameError",
    ("return tensors.pop(number)", "t = tensors[number]; tensors.clear(); return t"): "runs",
    ("return count[0] - 1", "return -count[0]"): "KeyError",
    ("tensors[len(tensors)] = t.detach()", "tensors[len(tensors)] = t.detach() * 2"): "gradients differ",
}


def made(source: str):
    return defined(source, "recomputed", torch=torch, saved_tensors_hooks=saved_tensors_hooks)


@pytest.mark.parametrize("last", ["return tensors.pop(number)", "return tensors[number]"])
def test_a_right_answer_passes(last):
    assert verdict(made(RIGHT.replace("return tensors.pop(number)", last))).startswith("Right: the same gradients")


@pytest.mark.parametrize(("old", "new"), WRONG)
def test_a_wrong_answer_is_told_what_is_wrong(old, new):
    assert old in RIGHT
    assert WRONG[old, new] in verdict(made(RIGHT.replace(old, new)))


def test_a_second_graph_that_stays_is_seen_in_memory():
    assert "times the activations of PyTorch's checkpoint. The second run's graph" in verdict(made(GRAPH_STAYS))
