"""Submissions that want points, or harm: none gains one, sees or changes what is not its own, or holds others up."""

from operator import attrgetter

import pytest
from hostile_submissions import gains_nothing

from grading.attacks.attack import LAB
from grading.attacks.submit import ATTACKS, course
from grading.boxes.sandbox import Bubblewrap

pytestmark = pytest.mark.skipif(bool(Bubblewrap.obstacle()), reason=f"needs a real box: {Bubblewrap.obstacle()}")


@pytest.fixture(scope="module")
def classroom():
    with course() as classroom:
        yield classroom


@pytest.mark.night
@pytest.mark.parametrize("attack", ATTACKS, ids=attrgetter("name"))
def test_it_gains_nothing(attack, classroom):
    gains_nothing(attack, classroom)


@pytest.mark.night
def test_honest_work_is_graded_after_all_that(classroom):
    assert classroom.autograde(LAB, "victim").points["lab2-plan"] == 3
