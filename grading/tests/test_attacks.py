"""Submissions that want points, or harm: none gains one, sees or changes what is not its own, or holds others up."""

import shutil
import tempfile
from contextlib import closing

import pytest
from submissions import ROOT
from traitlets.config import Config

from grading.attacks.attack import LAB
from grading.attacks.submit import ATTACKS, prepare, submit
from grading.classroom import Classroom
from grading.referee import HANGS
from grading.sandbox import Bubblewrap
from grading.session import LONGEST_DEADLINE_S

pytestmark = pytest.mark.skipif(bool(Bubblewrap.obstacle()), reason=f"needs a real box: {Bubblewrap.obstacle()}")
CELL_S, NOTEBOOK_S = 20, 60
LONGEST_S = NOTEBOOK_S + HANGS * LONGEST_DEADLINE_S + 60  # a notebook that never ends, whose answer hangs; and margins
QUICK = {
    "reads_the_solution",
    "asks_for_the_solution_on_the_rank",
    "writes_answers_of_its_own",
    "replies_in_the_hosts_place",
    "replies_with_a_pickle",
    "forks_without_end",
    "eats_memory",
    "leaves_a_daemon",
    "kills_whatever_it_can",
    "writes_where_it_does_not_belong",
    "doubles_the_checks",
    "links_to_the_gradebook",
}


@pytest.fixture(scope="module")
def classroom(tmp_path_factory):
    root = tmp_path_factory.mktemp("course")
    shutil.copytree(ROOT / "solutions", root / "solutions")
    settings = Config({"RefereeExecutor": {"timeout": CELL_S, "notebook_timeout": NOTEBOOK_S}})
    with pytest.MonkeyPatch.context() as patch, closing(Classroom(root, settings)) as classroom:
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("temporary")))
        prepare(classroom)
        yield classroom


@pytest.fixture(autouse=True)
def secrets(monkeypatch):
    monkeypatch.setenv("GRADER_TOKEN", "secret")


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
    print(outcome)


@pytest.mark.slow
def test_honest_work_is_graded_after_all_that(classroom):
    assert classroom.autograde(LAB, "victim").points["lab2-plan"] == 3
