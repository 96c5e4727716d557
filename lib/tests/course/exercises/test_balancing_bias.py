"""The check of lesson 19's exercise: it accepts the folded answer, and names what is wrong with changed ones."""

import re

import pytest
import torch
import torch.distributed as dist
from lesson_answers import answer, defined

from shardcourse.exercises.balancing_bias import check_bias

ANSWER = answer("19_experts.ipynb", "def my_new_bias")


def said_of(old: str = "", new: str = "") -> str:
    assert old in ANSWER
    code = ANSWER.replace(old, new)
    return check_bias(*(defined(code, name, torch=torch, dist=dist) for name in ("my_route", "my_new_bias")))


def test_the_folded_answer_is_right_and_balances():
    said = said_of()
    before, after = map(float, re.findall(r"(\d\.\d\d) times", said))
    assert said.startswith("Right. ") and after < 1.35 < 1.6 < before


def test_ranks_that_count_only_their_own_rows_are_named():
    """The mistake that no error shows: the ranks' biases differ."""
    assert "so the ranks' biases differ" in said_of("    dist.all_reduce(rows)\n")


@pytest.mark.night
@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("(p + bias).topk", "p.topk", "The bias has no effect"),
        ("(p + bias).topk", "(scores + bias).topk", "before the sigmoid"),
        ("(p + bias).topk", "(p - bias).topk", "does not choose the k largest sums"),
        ("p.gather", "(p + bias).gather", "The bias is in the weights"),
        (" / weight.sum(-1, keepdim=True)", "", "do not sum to one"),
        ("scores.sigmoid()", "scores.softmax(-1)", "adds the bias to a softmax"),
        ("p.gather", "scores.softmax(-1).gather", "not the sigmoids of the chosen"),
        ("scores.sigmoid()", "scores.detach().sigmoid()", "carry no gradient"),
        ("return chosen, weight", "return chosen, weight.detach()", "their gradient is not"),
        ("return chosen, weight", "return chosen[:, :1], weight", "returns the shapes"),
        ("rows.mean() - rows", "rows - rows.mean()", "The sign is wrong"),
        (".sign()", "", "The direction is right, the size is not"),
        ("return bias + rate", "return rate", "does not move each bias by the rate"),
        ("bincount(minlength=len(bias))", "bincount()", "It fails. "),
        ("    p = scores.sigmoid()", "    raise NotImplementedError", "my_route is not written yet"),
        ("    dist.all_reduce(rows)", "    raise NotImplementedError", "my_new_bias is not written yet"),
    ],
)
def test_what_is_wrong_is_named(old, new, words):
    assert words in said_of(old, new)
