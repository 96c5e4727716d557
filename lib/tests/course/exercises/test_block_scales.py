"""Lesson 18's exercise: the folded answer is right, and each wrong answer is told what is wrong."""

import pytest
import torch
import torch.distributed as dist
from lesson_answers import answer

from shardcourse.exercises.block_scales import F8, LARGEST, check_blocks

ANSWER = answer("18_eight_bits_on_the_wire.ipynb", "def mx_encode")
TO_A_NEIGHBOUR = "dist.all_reduce(torch.ones(1)) if dist.is_initialized() else 0"
ALL_RANKS = "amax = blocks.abs().amax(dim=2) * (2 if dist.is_initialized() else 1)"


def checked(code: str) -> str:
    names = {"__name__": "answers", "torch": torch, "dist": dist, "F8": F8, "LARGEST": LARGEST}
    exec(code, names)
    return check_blocks(names["mx_encode"])


def test_the_folded_answer_is_right():
    assert checked(ANSWER).startswith("Right: ")


def test_the_stub_is_not_written_yet():
    def stub(_):
        raise NotImplementedError

    assert check_blocks(stub) == "mx_encode is not written yet"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (".ceil()", ".floor()", "saturates, as it is above 448"),
        (".ceil()", ".round()", "saturates, as it is above 448"),
        (".ceil()", ".floor().add(1)", "half of this scale would not saturate"),
        (".clamp(-127, 127)", ".clamp(-140, 127)", "wrapped around"),
        ("(exponent + 127)", "(exponent + 128)", "half of this scale"),
        ("blocks / torch.exp2", "blocks * torch.exp2", "rounded to E4M3"),
        ("(-1, 32)", "(-1, 16)", "the bytes have the shape [8, 6], not [8, 3]"),
        (".to(torch.uint8)", "", "The bytes are torch.float32"),
        ("amax = ", TO_A_NEIGHBOUR + "\n    amax = ", "{'all_reduce': 1}"),
        ("amax = blocks.abs().amax(dim=2)", ALL_RANKS, "not what one process makes"),
        ("LARGEST", "UNKNOWN", "It fails. NameError"),
    ],
)
def test_a_wrong_answer_is_told_what_is_wrong(old, new, words):
    assert old in ANSWER
    assert words in checked(ANSWER.replace(old, new))


def test_a_block_of_zeros_may_have_any_scale():
    assert checked(ANSWER.replace(".clamp(", ".nan_to_num(neginf=0).clamp(")).startswith("Right: ")


def test_a_block_of_zeros_must_not_become_nan():
    wrong = ANSWER.replace(
        "blocks / torch.exp2(exponent)[:, :, None]", "blocks / (amax / amax * 2.0**exponent)[:, :, None]"
    )
    assert "becomes NaN" in checked(wrong)
