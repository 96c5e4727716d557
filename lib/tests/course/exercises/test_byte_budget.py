"""The exercise of lesson 8b: the right answers pass, and each wrong one is told what is wrong with it."""

import pytest
import torch
from lesson_answers import answer, defined
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from shardcourse.exercises.byte_budget import verdict

RIGHT = answer("08b_selective_checkpointing.ipynb", "def keep_within")
COUNTS_ONCE = "    spent = {False: 0, True: 0}\n\n    def contexts():\n"
WRONG = {  # what is altered, by what -> what the reader is told
    ("    return contexts\n", "    return None\n"): "returns nothing yet",
    ("return CheckpointPolicy.MUST_SAVE", "return CheckpointPolicy.MUST_SAV"): "AttributeError",
    (" > budget_bytes", " > 2 * budget_bytes + 99"): "They keep more than the budget.",
    (" > budget_bytes", " >= budget_bytes"): "They keep too little",
    ("not is_product(op)", "op is not torch.ops.aten.addmm.default"): "They keep too little",
    (
        "    def contexts():\n        spent = {False: 0, True: 0}\n",
        COUNTS_ONCE,
    ): "does each call of `contexts` count anew",
    ("not is_product(op)", "True"): "They keep too little",
    ("spent[ctx.is_recompute] += n_bytes", "spent[ctx.is_recompute] = n_bytes"): "They keep more than the budget.",
}


def made(source: str):
    names = {
        "torch": torch,
        "CheckpointPolicy": CheckpointPolicy,
        "create_selective_checkpoint_contexts": create_selective_checkpoint_contexts,
        "is_product": lambda op: "mm" in op.name(),
    }
    return defined(source, "keep_within", **names)


def test_the_right_answer_passes():
    assert verdict(made(RIGHT)).startswith("Right: each block keeps")


@pytest.mark.parametrize(("old", "new"), WRONG)
def test_a_wrong_answer_is_told_what_is_wrong(old, new):
    assert old in RIGHT
    assert WRONG[old, new] in verdict(made(RIGHT.replace(old, new)))
