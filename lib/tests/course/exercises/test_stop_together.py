"""The check of lesson 11b's exercise: it accepts the folded answer, and names what is wrong with changed ones."""

import pytest
import torch
import torch.distributed as dist
from lesson_answers import answer, defined

from shardcourse.exercises.stop_together import check_training
from shardcourse.experiments import small_run
from shardlab import state

ANSWER = answer("11b_failures.ipynb", "def my_training")


def written(code: str):
    return defined(code, "my_training", torch=torch, dist=dist, small_run=small_run, state=state)


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
