"""Lesson 21's exercise: the folded answer is right, and each wrong answer is told what is wrong."""

import pytest
import torch
from lesson_answers import answer, definitions

from shardcourse.exercises.matrix_owners import LAYER, busiest, check_owners, sent_bytes
from shardcourse.experiments import whole_matrix_updates as small

LESSON = "21_optimizers_of_whole_matrices.ipynb"
ANSWER = answer(LESSON, "def assign")


@pytest.fixture(scope="module")
def lesson():
    return definitions(LESSON)


def checked(code: str, lesson: dict, **instead) -> str:
    names = lesson | instead
    scope = {"__name__": "answers", "small": small, "torch": torch}
    exec(code, scope)
    return check_owners(scope["assign"], names["all_at_once"], names["newton_schulz"])


def test_the_folded_answer_is_right(lesson):
    assert checked(ANSWER, lesson).startswith("Right: ")


def test_the_stub_is_not_written_yet():
    def stub(shapes, ranks):
        raise NotImplementedError

    assert check_owners(stub, None, None) == "assign is not written yet"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("sorted(range(len(shapes)), key=lambda i: -work[i])", "range(len(shapes))", "one large matrix at the end"),
        ("owners[i] = loads.index(min(loads))", "owners[i] = i % ranks", "times the bound"),
        ("-work[i]", "work[i]", "times the bound"),
        ("return owners", "return owners[1:]", "13 owners for 14 matrices"),
        ("return owners", "return [owner + 1 for owner in owners]", "an owner is not among the ranks 0 to 3"),
        ("return owners", "return torch.tensor(owners)", "return a list with a rank"),
        (
            "return owners",
            "import os; k = os.getpid() % ranks; return [(owner + k) % ranks for owner in owners]",
            "The ranks disagree",
        ),
        ("len(shapes)", "len(shape)", "It fails. NameError"),
    ],
)
def test_a_wrong_answer_is_told_what_is_wrong(lesson, old, new, words):
    assert old in ANSWER
    instead = {"all_at_once": lambda shards, owners: shards} if "getpid" in new else {}
    assert words in checked(ANSWER.replace(old, new), lesson, **instead)


def test_a_step_with_other_results_is_found(lesson):
    def wrong(shards, owners):
        return [shard + 1 for shard in shards]

    assert "differ from those of one process" in checked(ANSWER, lesson, all_at_once=wrong)


def test_a_step_that_sends_more_is_found(lesson):
    every_rank = lesson["every_rank"]

    def wasteful(shards, owners):
        return every_rank(shards)

    assert "by the formula" in checked(ANSWER, lesson, all_at_once=wasteful)


def test_the_busiest_rank_by_hand():
    work = [small.newton_schulz_flops(shape) for shape in ((16, 16), (8, 16))]
    assert work == [5 * 6 * 16**3, 5 * (4 * 64 * 16 + 2 * 512)]
    assert busiest([0, 0, 1], [(16, 16), (8, 16), (8, 16)], 2) == (
        work[0] + work[1],
        max(work[0], work[0] / 2 + work[1]),
    )


def test_bytes_of_an_owner_by_hand():
    whole = [torch.empty(4, 4), torch.empty(8, 4)]
    assert sent_bytes(whole, [0, 1], 0) == 8 * 4 * 4 / 4 + 3 / 4 * 4 * 4 * 4
    assert len(LAYER) == 7
