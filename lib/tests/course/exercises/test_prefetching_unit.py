"""Lesson 5b's exercise: the folded answer is right, and each wrong answer is told what is wrong."""

import pytest
import torch
from lesson_answers import answer, defined

from shardcourse.exercises.prefetching_unit import check_prefetch
from shardcourse.experiments import small_fsdp
from shardcourse.experiments.small_fsdp import HookedUnit

ANSWER = answer("05b_overlap_and_failures.ipynb", "class PrefetchingUnit")
NAMES = {"__name__": "answers", "torch": torch, "small_fsdp": small_fsdp}

TWO_AHEAD = """self.next.begin_unshard()
            if self.next.next is not None:
                self.next.next.begin_unshard()"""


def checked(code: str) -> str:
    return check_prefetch(defined(code, "PrefetchingUnit", **NAMES))


def test_the_folded_answer_is_right():
    assert checked(ANSWER).startswith("Right: ")


def test_a_unit_that_does_not_prefetch_is_told_so():
    assert "block 1 comes next, and its gather has not begun" in check_prefetch(HookedUnit)


def test_the_stub_is_not_written_yet():
    class PrefetchingUnit(HookedUnit):
        def unshard(self):
            raise NotImplementedError

    assert check_prefetch(PrefetchingUnit) == "PrefetchingUnit is not written yet."


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("self.work.wait()", "pass", "rank 0 has waited for 0 gathers, not 2"),
        (
            ", async_op=True)",
            ", async_op=True)\n            self.work.wait()",
            "rank 0 has waited for",
        ),
        ("self.previous.begin_unshard()", "pass", "While block 3 computes backward, nothing is prefetched"),
        ("self.next.begin_unshard()", "pass", "block 1 comes next, and its gather has not begun"),
        ("self.next.begin_unshard()", TWO_AHEAD, "only one unit should be prefetched"),
    ],
)
def test_a_wrong_answer_is_told_what_is_wrong(old, new, words):
    assert old in ANSWER
    assert words in checked(ANSWER.replace(old, new))
