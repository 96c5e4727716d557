"""The referee's verdict on right submissions in different styles, and on every wrong one that a class hands in: points
to the half, and the check that finds a mistake names it."""

import re

import pytest
from submissions import LAB

from grading.checks import lab_module
from grading.samples import samples

CHECKS = lab_module(LAB).CHECKS
TIMED = "lab2.throughput"  # takes longest: judged for those that must fail it, and for two that must not


def _cases():
    """`make demo` shows those of the demo's class, so that here they can wait for the long run."""
    return [pytest.param(s, id=s.name, marks=[pytest.mark.slow] * s.demo) for s in samples(LAB)]


@pytest.mark.parametrize("sample", _cases())
def test_sample_gets_its_points_and_its_cause(sample, referee, answers, monkeypatch):
    monkeypatch.setattr("grading.session.SHORTEST_DEADLINE_S", 6.0)  # for the one that hangs
    handed_in, due = answers(sample), {name: sample.points.get(name, check.points) for name, check in CHECKS.items()}
    if due[TIMED] and not sample.name.startswith("right"):
        del handed_in[TIMED]
        due[TIMED] = 0
    verdicts = referee.judge(handed_in)
    report = "\n".join(v.text() for v in verdicts)
    assert {v.check: v.points for v in verdicts} == due, report
    if sample.points:
        assert re.search(sample.cause, next(v for v in verdicts if v.check in sample.points).cause), report


def test_every_check_stops_a_sample_that_no_other_check_stops():
    """Or a check could be dropped and nobody would notice. Time is lost with messages or with wrong gradients only."""
    stopped_by = [set(s.points) for s in samples(LAB)]
    for check in set(CHECKS) - {TIMED}:
        assert {check} in stopped_by or {check, TIMED} in stopped_by
    assert {"lab2.traffic", TIMED} in stopped_by
