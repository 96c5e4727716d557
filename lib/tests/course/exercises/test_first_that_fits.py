"""The exercise of lesson 14a: the folded answer passes (test_folded_answers), and wrong ones are told what is wrong."""

import pytest
from lesson_answers import answer, defined

from shardcourse.exercises.first_that_fits import verdict

RIGHT = answer("14a_choosing.ipynb", "def choose")
WRONG = {  # what is altered, by what -> what the reader is told
    ("16 * gb,", "4 * gb,"): "DDP holds 16 bytes a parameter everywhere",
    ("4 * gb + 12 * gb / gpus", "16 * gb / gpus"): "whole weights *and* whole gradients",
    ("4 * gb + 12 * gb / gpus", "2 * gb + 14 * gb / gpus"): "whole weights *and* whole gradients",
    ("2 * gb + 16 * gb / gpus", "16 * gb / gpus"): "SHARD_GRAD_OP holds gathered weights too",
    ("16 * gb / gpus_per_node", "16 * gb / gpus"): "divides by the GPUs of a node",
    ("    if gpus <= gpus_per_node:\n        del held_gb[\"hybrid\"]\n", ""): "'FULL_SHARD' is right",
    ("return None", "return 'FULL_SHARD'"): "nothing fits",
    ("gb = n_params / 1e9", "gb = n_params / 0"): "ZeroDivisionError",
}  # fmt: skip


@pytest.mark.parametrize(("old", "new"), WRONG)
def test_a_wrong_answer_is_told_what_is_wrong(old, new):
    assert old in RIGHT
    assert WRONG[old, new] in verdict(defined(RIGHT.replace(old, new), "choose"))


def test_the_right_answer_passes():
    assert verdict(defined(RIGHT, "choose")).startswith("Right")
