"""The check of lesson 24's exercise: it accepts the folded answer, and names what is wrong with changed ones."""

import pytest
import torch.nn.functional as F
from lesson_answers import answer, defined, definitions

from shardcourse.exercises.typed_norm import check_norm
from shardcourse.experiments.typed_ranks import gradient, put, spmd

LESSON = "24_sharding_has_types.ipynb"
ANSWER = answer(LESSON, "def my_norm")
ENTER = 'spmd.convert(x @ w0, "tp", src=spmd.I, dst=spmd.R)'
LEAVE = 'spmd.all_reduce(F.silu(h @ w1) @ w2, "tp", src=spmd.P, dst=spmd.I)'
NORM = 'whole + spmd.all_reduce(cut, "tp", src=spmd.P, dst=spmd.I)'
TWICE = 'spmd.all_reduce(spmd.reinterpret(whole, "tp", src=spmd.I, dst=spmd.P) + cut, "tp", src=spmd.P, dst=spmd.I)'


def said_of(old: str = "", new: str = "") -> str:
    assert old in ANSWER
    return check_norm(defined(ANSWER.replace(old, new), "my_norm", F=F, put=put, gradient=gradient, spmd=spmd))


def test_the_folded_answer_is_right():
    assert said_of().startswith("Right: ")


def test_what_stands_in_the_lesson_is_refused():
    assert "convert(tensor, tp, src=I, dst=R)" in check_norm(definitions(LESSON)["my_norm"])


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (ENTER, "x @ w0", "Invariant type on axis tp cannot mix"),
        (LEAVE, "F.silu(h @ w1) @ w2", "Partial type on axis tp cannot propagate"),
        (LEAVE, LEAVE.replace("spmd.I", "spmd.R"), "Replicate loss on axis tp"),
        ('(spmd.all_reduce(g, "dp", src=spmd.P, dst=spmd.R) for g', "(g for g", "Partial type on axis dp"),
        (NORM, "whole + cut", "all_reduce(tensor, tp, src=P"),
        ("    return", "    whole += 1\n    mean = x.mean()\n    return", "It fails. ValueError"),
    ],
)
def test_the_checkers_words_are_passed_on(old, new, words):
    assert words in said_of(old, new)


@pytest.mark.night
@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (NORM, TWICE, "It counts w0 twice"),
        (".sqrt()", "", "It is the square"),
        ("whole + ", "", "w0's gradient is not in it"),
        ("/ 8", "/ 16", "Its gradients are half as large"),
        ("/ 8", "/ 5", "A claim may be false"),
        (".sqrt()", ".sqrt().reshape(1).expand(2)", "should return one number"),
        (
            "    return",
            "    whole = whole * (1 + mesh.get_local_rank(0))\n    return",
            "the ranks have different norms",
        ),
    ],
)
def test_a_wrong_number_that_the_checker_accepts_is_named(old, new, words):
    assert words in said_of(old, new)
