"""Lesson 23's exercise: the folded answer is right, and each wrong answer is told what is wrong."""

import pytest
import torch
import torch.distributed as dist
from lesson_answers import answer, defined

from shardcourse.exercises import weight_ring

ANSWER = answer("23_hidden_communication.ipynb", "def my_weight_gradient")


def problems(code: str, **options) -> list[str]:
    names = {"torch": torch, "dist": dist, "N": weight_ring.N}
    return weight_ring.problems(defined(code, "my_weight_gradient", **names), **options)


def test_the_folded_answer_is_right():
    assert problems(ANSWER) == []


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("(me - hop)", "(me + hop)", "whose chunk is here"),
        ("            x = arrived(coming)", "            arrived(coming)", "the gradient is wrong"),
        ("range(N)", "range(1)", "the product of its own chunk alone"),
        (" if hop < N - 1 else None", "", "each rank sends 4 chunks: 3 are needed"),
        ("dys[whose]", "dys[me]", "the gradient is wrong"),
        ("    return dw", "    return None", "the result is no tensor"),
    ],
)
def test_a_wrong_answer_is_told_what_is_wrong(old, new, words):
    assert old in ANSWER
    assert any(words in said for said in problems(ANSWER.replace(old, new)))


def test_a_product_that_waits_for_its_message_hides_nothing():
    code = ANSWER.replace("            x = arrived(coming)\n", "            x = arrived(pass_on(x))\n")
    code = code.replace("pass_on(x) if hop < N - 1 else None", "hop < N - 1")
    assert any("0 of 4 products run while a chunk travels" in said for said in problems(code))


def test_an_all_gather_is_named():
    code = """def my_weight_gradient(x, dy, product, pass_on, arrived):
        xs = [torch.empty_like(x) for _ in range(N)]
        dist.all_gather(xs, x)
        return sum(product(part.t(), d) for part, d in zip(xs, dy.chunk(N)))"""
    assert any("an all_gather brings all chunks at once" in said for said in problems(code))


def test_a_rank_that_does_not_send_leaves_the_others_waiting():
    code = ANSWER.replace("if hop < N - 1 else None", "if hop < N - 1 and me else None")
    assert any("wait for ever" in said or "it fails" in said for said in problems(code, timeout_s=8))


def test_a_rank_that_keeps_all_chunks_is_told_how_many():
    code = ANSWER.replace("dy.chunk(N), 0\n", "dy.chunk(N), 0\n    xs = [x]\n")
    code = code.replace("x = arrived(coming)\n", "x = arrived(coming)\n            xs.append(x)\n")
    assert any("keeps 3 chunks that it received" in said for said in problems(code))
