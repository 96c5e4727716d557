"""Submissions that want points, or harm: none gains one, sees or changes what is not its own, or holds others up."""

import pytest

from grading.attacks.attack import LAB
from grading.attacks.submit import ATTACKS, LONGEST_S, course, submit
from grading.sandbox import Bubblewrap

pytestmark = pytest.mark.skipif(bool(Bubblewrap.obstacle()), reason=f"needs a real box: {Bubblewrap.obstacle()}")
QUICK = {
    "reads_the_solution",
    "asks_for_the_solution_on_the_rank",
    "writes_answers_of_its_own",
    "replies_in_the_hosts_place",
    "replies_with_a_pickle",
    "forges_the_account_of_memory",
    "forges_the_account_of_messages",
    "forks_without_end",
    "eats_memory",
    "leaves_a_daemon",
    "kills_whatever_it_can",
    "writes_where_it_does_not_belong",
    "doubles_the_checks",
    "links_to_the_gradebook",
}


@pytest.fixture(scope="module")
def classroom():
    with course() as classroom:
        yield classroom


def attacks() -> list:
    """A few for `make slow`, all of them for `make attacks`."""
    marks = {True: pytest.mark.slow, False: [pytest.mark.long, pytest.mark.attacks]}
    return [pytest.param(a, id=a.name, marks=marks[a.name in QUICK]) for a in ATTACKS]


@pytest.mark.parametrize("attack", attacks())
def test_it_gains_nothing(attack, classroom):
    outcome = submit(attack, classroom)
    assert outcome.failed, outcome
    assert outcome.seconds < LONGEST_S
    assert outcome.words, "nobody is told why"
    if attack.name.startswith(("forges_the_account", "keeps_a_copy")):  # and did not fail by itself
        assert "the system" in outcome.words
    print(outcome)


@pytest.mark.slow
def test_honest_work_is_graded_after_all_that(classroom):
    assert classroom.autograde(LAB, "victim").points["lab2-plan"] == 3
