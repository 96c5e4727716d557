"""What the points of each lab rest on, as the instructors' README says it."""

import re

import pytest
from submissions import LABS, ROOT

from grading.judge.find_lab import lab_module
from grading.judge.session import Ground

ROW = re.compile(r"^\| (\d+) \| (\d*) ?\| (\d*) ?\| (\d*) ?\|$", re.M)
GROUNDS = (Ground.RESULT, Ground.SEEN, Ground.CLAIMED)


def points_by_ground(lab: str) -> tuple[int, ...]:
    checks = lab_module(lab).CHECKS.values()
    return tuple(sum(check.points for check in checks if check.ground is ground) for ground in GROUNDS)


@pytest.mark.parametrize("lab", LABS)
def test_the_instructors_are_told_what_the_points_rest_on(lab):
    said = {
        row[0]: tuple(int(n or 0) for n in row[1:]) for row in ROW.findall((ROOT / "grading/README.md").read_text())
    }
    assert said[lab.split("_")[0].removeprefix("lab")] == points_by_ground(lab)


def test_what_reads_a_clock_is_seen_from_outside():
    for lab in LABS:
        for name, check in lab_module(lab).CHECKS.items():
            assert not check.timed or check.ground is Ground.SEEN, name
