"""Lesson 17's exercise: the folded answer is right, and each wrong answer is told what is wrong."""

import pytest
import torch
from lesson_answers import answer, defined
from torch import nn

from shardcourse.exercises import graph_breaks

ANSWER = answer("17_compile_and_shard.ipynb", "class MyLimited")


def problems(code: str) -> list[str]:
    return graph_breaks.problems(defined(code, "MyLimited", torch=torch, nn=nn, graph_breaks=graph_breaks))


def test_the_folded_answer_is_right():
    assert problems(ANSWER) == []


def test_the_block_as_it_was_has_breaks():
    assert any("graph breaks are left" in words for words in graph_breaks.problems(graph_breaks.Limited))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("y / top, y)", "y / y.abs().max(), y)", "above the limit: the result is right, and the gradient is not"),
        ("y.detach().abs()", "y.abs()", "below the limit: it fails. A statistic is part of autograd's graph"),
        ("torch.where(top > graph_breaks.LIMIT, y / top, y)", "y / top", "below the limit: the result differs"),
        ("return x + torch", "return torch", "the result differs"),
        ("torch.zeros(()), persistent=False", "torch.zeros(())", "the state dict differs in ['largest']"),
        ("    def forward", "    @torch.compiler.disable\n    def forward", "nothing is compiled"),
        ("self.calls.add_(1)", "pass", "`calls` is 0 and should be 3"),
        ("torch.maximum(self.largest, top)", "top", "`largest` is"),
        ('self.register_buffer("calls", torch.zeros((), dtype=torch.int64), persistent=False)', "self.calls = 0",
         "graphs for three equal calls"),
        ("        return", "        if top > 9:\n            y = y * 1\n        return", "graph breaks are left"),
    ],
)  # fmt: skip
def test_a_wrong_answer_is_told_what_is_wrong(old, new, words):
    assert old in ANSWER
    code = ANSWER.replace(old, new)
    if "self.calls = 0" in new:
        code = code.replace("self.calls.add_(1)", "self.calls += 1")
    assert any(words in said for said in problems(code)), problems(code)
