"""Every lab the whole way, through nbgrader, papermill and the referee: its solution, and what students are given."""

import shutil
from contextlib import closing

import pytest
from submissions import LABS, ROOT

from grading.bench.cost_of_labs import run, show
from grading.gradebook.nbgrader_classroom import Classroom
from grading.judge.find_lab import lab_module
from grading.samples.sample import read_lab


@pytest.mark.alone
@pytest.mark.parametrize("lab", LABS)
def test_the_solution_gets_all_points(lab, capsys):
    result = run([lab])
    row = result["labs"][0]
    assert row["points"] == row["of"] == sum(check.points for check in lab_module(lab).CHECKS.values())
    assert row["problems"] == []  # its other cells, too, run without an error or a warning
    show(result)
    assert lab in capsys.readouterr().out


@pytest.fixture(scope="module")
def classroom(tmp_path_factory):
    root = tmp_path_factory.mktemp("course")
    shutil.copytree(ROOT / "solutions", root / "solutions")
    with closing(Classroom(root)) as classroom:
        yield classroom


@pytest.mark.night
@pytest.mark.parametrize("lab", LABS)
def test_what_students_are_given_gets_nothing_and_says_so(lab, classroom):
    classroom.release(lab)
    classroom.hand_in(lab, "blank", read_lab("labs", lab))
    grade = classroom.autograde(lab, "blank")
    assert grade.total == 0
    assert all("NotImplementedError" in v.cause for v in grade.verdicts), [v.text() for v in grade.verdicts]
