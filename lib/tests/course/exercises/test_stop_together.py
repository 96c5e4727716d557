"""The check of lesson 11b's exercise: it accepts the folded answer, and names what is wrong with changed ones."""

import re

import nbformat
import pytest
import torch
import torch.distributed as dist
from course_copy import ROOT

from shardcourse.exercises.stop_together import check_training
from shardcourse.experiments import small_run
from shardcourse.lessons.cells import markdown
from shardlab import state

TEXT = markdown(nbformat.read(ROOT / "course" / "11b_failures.ipynb", as_version=4))
ANSWER = re.search(r"```python\n(def my_training.*?)```", TEXT, re.S)[1]


def written(code: str):
    names = {"__name__": "answers", "torch": torch, "dist": dist, "small_run": small_run, "state": state}
    exec(code, names)
    return names["my_training"]


def test_the_folded_answer_is_right():
    assert check_training(written(ANSWER)).startswith("Right: ")


@pytest.mark.night
@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("dist.broadcast_object_list(seen, src=0)", "pass", "It hangs or fails. "),
        ("dist.broadcast_object_list(seen, src=0)", "dist.broadcast_object_list(seen, src=1)", "stop after step 4"),
        ("seen[0] or (step", "(step", "The stopped ranks have saved step 4; 6 steps were done."),
        (
            "state.load(folder, model, optimizer) if",
            "0 if",
            "After the restart: it did steps 0 to 9, not steps 6",
        ),
        ("(step + 1) % every == 0", "False", "the last checkpoint is of step none, not of step 8"),
        ("return losses", "return None", "it returned None, not a dict of losses by step"),
    ],
)
def test_what_is_wrong_is_named(old, new, words):
    assert old in ANSWER
    assert words in check_training(written(ANSWER.replace(old, new)))
