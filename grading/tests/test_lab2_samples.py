"""The referee's verdict on right submissions in different styles, and on every wrong one that a class hands in: points
to the half, and the check that finds a mistake names it."""

import re

import pytest
from conftest import LAB

from grading.checks import lab_module
from grading.samples import samples

CHECKS = lab_module(LAB).CHECKS


@pytest.mark.parametrize("sample", samples(LAB), ids=lambda s: s.name)
def test_sample_gets_its_points_and_its_cause(sample, referee, answers):
    verdicts = referee.judge(answers(sample))
    assert [v.check for v in verdicts] == list(CHECKS)
    points = {v.check: v.points for v in verdicts}
    report = "\n".join(v.text() for v in verdicts)
    assert points == {name: sample.points.get(name, check.points) for name, check in CHECKS.items()}, report
    if sample.points:
        first = next(v for v in verdicts if not v.passed)
        assert re.search(sample.cause, first.cause), report
